"""Every loss, objective and reward keeps what the kit asks; rewards that are models or services have it in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mt_conformance import (
    BaseCallbackConformance,
    BaseObjectiveConformance,
    BasePreferenceLossConformance,
    BaseRewardConformance,
)
from mt_plugin_alignment import plugin
from mt_plugin_alignment.options import DivergenceOptions

LOSSES = plugin.mt_preference_losses()
DIVERGENT = [each.name for each in LOSSES if issubclass(each.config, DivergenceOptions)]
EVERY = [(each.name, {}) for each in LOSSES]
EVERY += [(name, {"divergence": kind}) for name in DIVERGENT for kind in ("forward-kl", "js", "alpha")]
EVERY += [(name, {"label_smoothing": 0.2}) for name in ("sigmoid", "cpo", "simpo")]
EVERY += [("ipo", {"length": "sum"}), ("discopop", {"tau": 0.9})]


class TestLosses(BasePreferenceLossConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=EVERY, ids=str)
    def _each(self, request: pytest.FixtureRequest) -> None:
        options: dict[str, Any]
        self.name, options = request.param
        self.options = options
        self.raises_chosen = self.name not in ("apo-down", "discopop")
        self.lowers_rejected = self.name != "discopop"  # whose slope at βΔ = 0 is (1 - log 2) / (4τ) - ¾


OBJECTIVES: list[tuple[str, dict[str, Any]]] = [
    ("dpo", {}),
    ("dpo", {"loss": "ipo", "sft": 0.5}),
    ("dpo", {"loss": "sigmoid-norm", "ld_alpha": 0.5, "wpo": True}),
    ("dpo", {"loss": [{"name": "bco-pair"}, {"name": "apo-zero", "weight": 0.5}], "sft": 1.0, "sft_mean": "tokens"}),
    ("cpo", {}),
    ("cpo", {"sft_mean": "tokens"}),
    ("simpo", {}),
    ("simpo", {"wpo": True, "sft": 0.1}),
    ("orpo", {}),
    ("orpo", {"nll_on": "all"}),
    ("orpo", {"nll_on": "all", "sft_mean": "tokens", "ld_alpha": 0.5, "wpo": True}),
    ("kto", {"desirable_weight": 1.3}),
    ("kto", {"loss": "apo-zero"}),
    ("aot", {"label_smoothing": 0.1}),
    ("aot", {"rows": "unpaired", "ld_alpha": 0.5, "sft": 0.1}),
    ("reward", {"centring": 0.1}),
    ("reward", {"margin": "add"}),
]


class TestObjectives(BaseObjectiveConformance):
    plugin, launches = plugin, False  # tests of the engine have every layout
    idle_options = ("prove",)  # of the first step of a run
    rows = [{**row, "margin": float(number)} for number, row in enumerate(BaseObjectiveConformance.rows)]

    @pytest.fixture(autouse=True, params=OBJECTIVES, ids=str)
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.name, self.options = request.param
        self.next_tokens = self.name != "reward" and self.options.get("nll_on") != "all"  # scores, and prompts as well


REWARDS: list[tuple[str, dict[str, Any]]] = [
    ("pattern", {"pattern": "[a-z]+"}),
    ("pattern", {"pattern": "the (sea|man)", "count": True}),
    ("exact", {}),
    ("exact", {"pattern": r"(\w+)\W*$", "ignore": "case"}),
    ("exact", {"field": "nothing"}),
    ("length", {"most": 4, "ramp": 20}),
    ("python", {"timeout": 30.0}),
]


class TestRewards(BaseRewardConformance):
    plugin = plugin

    @pytest.fixture(autouse=True, params=REWARDS, ids=str)
    def _each(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.name, self.options = request.param
        if self.name == "python":
            file = tmp_path / "mine.py"
            file.write_text("def score(answers):\n    return [len(each.text.split()) or None for each in answers]\n")
            self.options = {**self.options, "path": str(file)}


class TestAlarms(BaseCallbackConformance):
    plugin, name, launches = plugin, "rollout-alarms", False  # tests/alignment/alarms have runs with answers
