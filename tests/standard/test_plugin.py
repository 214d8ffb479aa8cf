"""What the built-ins offer, and that looking at it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_origin

import pytest
from annotated_types import Ge, Gt, MinLen

import mt_plugin_standard
from mt_plugin_standard import plugin

SOURCES = sorted(Path(mt_plugin_standard.__file__).parent.rglob("*.py"))

NAMES = {
    "mt_datasets": ["demo", "text", "jsonl"],
    "mt_tokenizers": ["byte", "sentencepiece", "huggingface"],
    "mt_objectives": ["pretrain", "sft"],
    "mt_quantizers": ["none"],
    "mt_adapters": ["full", "lora"],
    "mt_optimizers": ["adamw"],
    "mt_schedules": ["constant", "cosine"],
    "mt_task_prints": ["loss"],
    "mt_recipes": ["pretrain", "sft", "lora"],
}

POISONED = """
import sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tokenizers", "sentencepiece", "deepspeed", "numpy"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Poison())
from mt_plugin_standard import plugin
for hook in [name for name in dir(plugin) if name.startswith("mt_")]:
    for component in getattr(plugin, hook)():
        print(component.name, component.config.model_json_schema()["title"])
printer = plugin.mt_task_prints()[0]
printer.build(printer.config())([])
plugin.mt_datasets()[0].build(plugin.mt_datasets()[0].config(), split="train").row(0)
plugin.mt_schedules()[1].build(plugin.mt_schedules()[1].config(), total_steps=9)(3)
"""


def test_listing_the_built_ins_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", POISONED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == sum(map(len, NAMES.values()))


@pytest.mark.parametrize("hook", NAMES)
def test_the_hooks_offer_what_the_contract_names(hook: str) -> None:
    components = getattr(plugin, hook)()
    assert [component.name for component in components] == NAMES[hook]
    assert all(component.summary for component in components)


def test_every_option_has_a_description_and_a_bound_where_it_is_a_number_or_a_path() -> None:
    for hook in NAMES:
        for component in getattr(plugin, hook)():
            for name, field in component.config.model_fields.items():
                where = f"{component.name}.{name}"
                assert field.description, where
                several = get_origin(field.annotation) in (tuple, dict)
                if field.annotation is not bool and not several and "Literal" not in str(field.annotation):
                    assert any(isinstance(mark, Ge | Gt | MinLen) for mark in field.metadata), f"{where} has no bound"


def test_defaults_of_the_objectives() -> None:
    defaults = {each.name: (each.batching, each.truncation) for each in plugin.mt_objectives()}
    assert defaults == {"pretrain": ("packing", "split"), "sft": ("padding", "error")}
