"""What the plugin offers, that looking at it costs nothing, and the help that shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from annotated_types import Ge, Gt, MinLen

import mt_plugin_trackers
from mt_core import Component
from mt_plugin_trackers import plugin
from mt_train.cli.train import main

SOURCES = list(Path(mt_plugin_trackers.__file__).parent.rglob("*.py"))

POISONED = """
import sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "wandb", "mlflow", "fsspec", "transformers", "tensorboard"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Poison())
from mt_plugin_trackers import plugin as trackers
for component in trackers.mt_trackers():
    print(component.name, component.config.model_json_schema()["title"])
"""


def test_listing_trackers_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", POISONED], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(plugin.mt_trackers()) == 3


@pytest.mark.parametrize("component", plugin.mt_trackers(), ids=lambda each: each.name)
def test_every_option_is_described_and_bounded_and_every_component_has_a_source(component: Component) -> None:
    assert component.summary
    assert component.source.startswith("https://")
    for name, field in component.config.model_fields.items():
        assert field.description, name
        if field.annotation is not bool and "Literal" not in str(field.annotation) and name not in ("metric", "tags"):
            assert any(isinstance(mark, Ge | Gt | MinLen) for mark in field.metadata), name


@pytest.mark.usefixtures("kit_model")
def test_help_shows_the_options_of_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "kit-tiny", "--trackers.csv.file", "a.csv", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--trackers.csv.file" in said
    assert "--trackers.wandb" not in said
