"""What the distribution offers, that looking at it costs nothing, and that it uses public names only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mt_plugin_search
from mt_plugin_search.plugin import mt_callbacks
from mt_plugin_search.request import Settings

SOURCES = sorted(Path(mt_plugin_search.__file__).parent.rglob("*.py"))

POISONED = """
import sys

class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "optuna", "rich", "transformers"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Poison())
from mt_plugin_search import plugin, search
for component in plugin.mt_callbacks():
    print(component.name, component.config.model_json_schema()["title"])
"""


def test_listing_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", POISONED], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["median-pruning", "MedianPruningConfig"]


def test_every_option_is_described() -> None:
    (component,) = mt_callbacks()
    assert component.summary
    assert component.source.startswith("https://")
    for config in (component.config, Settings):
        assert all(field.description for field in config.model_fields.values())
