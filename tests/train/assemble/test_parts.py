"""The typed parts of a run: built by their components when they are asked for, and not before."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from mt_conformance import hermetic_host, tiny
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve


def parts_of(**slots: Any) -> Parts:
    return Parts.of(resolve({"model": "kit-tiny", **slots}, hermetic_host(tiny)))


def test_the_tokenizer_is_built_once_and_every_other_part_anew() -> None:
    parts = parts_of(adapter="lora")
    assert parts.tokenizer is parts.tokenizer
    assert parts.adapter() is not parts.adapter()
    assert parts.model() is not parts.model()


def test_a_part_has_the_options_of_its_slot_unless_others_are_given() -> None:
    parts = parts_of(optimizer={"name": "adamw", "lr": 0.25}, quantizer="none")
    optimizer = parts.optimizer([{"name": "all", "params": [torch.nn.Parameter(torch.zeros(2))]}])
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.defaults["lr"] == 0.25
    assert parts.quantizer() is None
    wider = parts.config.model.options.model_copy(update={"vocab_size": parts.config.model.options.vocab_size + 1})
    sizes = [sum(each.numel() for each in model.parameters()) for model in (parts.model(), parts.model(wider))]
    assert sizes[0] < sizes[1]


def test_every_component_that_takes_part_is_named_with_its_options() -> None:
    parts = parts_of(callbacks=[], adapter={"name": "lora", "rank": 3})
    chosen = {component.name: options for component, options in parts.components()}
    assert {"kit-tiny", "lora", "adamw", "cosine"} <= chosen.keys()
    assert chosen["lora"].model_dump()["rank"] == 3


def test_parts_import_no_torch_before_one_is_built() -> None:
    """Faults of a config are to show at once, and torch takes seconds."""
    code = (
        "import sys; from mt_core.plugins.host import PluginHost; from mt_train.plugins.resolve import resolve;"
        "from mt_train.assemble.parts import Parts;"
        "parts = Parts.of(resolve({'model': 'llama', 'adapter': 'lora'}, PluginHost.discover()));"
        "assert parts.optimizer_component.name == 'adamw' and not parts.adds_tokens;"
        "assert 'torch' not in sys.modules, 'torch'; parts.model(); assert 'torch' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
