"""What the plugin offers, and what its README says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mt_core import ConfigError
from mt_core.plugins.host import PluginHost
from mt_plugin_alignment.objectives.config import PairOptions
from mt_plugin_alignment.offers.losses import LOSSES
from mt_plugin_alignment.offers.objectives import OBJECTIVES
from mt_train.plugins.resolve import resolve

README = Path(__file__).parents[2] / "plugins/alignment/README.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| .* \| (`.*) \|$", re.MULTILINE)


def test_listing_loads_no_torch() -> None:
    code = "import sys, mt_plugin_alignment.plugin; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_readme_has_every_loss_with_its_options_and_defaults() -> None:
    said = {
        name: dict(re.findall(r"`(\w+)` ([^,]+)", options))
        for name, options in ROW.findall(README.read_text(encoding="utf-8"))
    }
    coupled = [each for each in OBJECTIVES if each.name in ("kto", "aot")]
    found = {
        each.name: {
            name: str(field.default)
            for name, field in each.config.model_fields.items()
            if name not in PairOptions.model_fields
        }
        for each in (*LOSSES, *coupled)
    }
    assert {name: options.keys() for name, options in said.items()} == {
        name: options.keys() for name, options in found.items()
    }
    for name, options in found.items():
        for option, default in options.items():
            assert said[name][option] == default.removesuffix(".0"), f"{name}.{option}"


@pytest.mark.parametrize("component", LOSSES, ids=lambda each: each.name)
def test_a_loss_names_its_paper(component: object) -> None:
    assert component.source.startswith("https://arxiv.org/abs/")  # type: ignore[attr-defined]
    number = component.source.rpartition("/")[2]  # type: ignore[attr-defined]
    module = sys.modules[component.build.__module__]  # type: ignore[attr-defined]
    assert number in (module.__doc__ or ""), "the docstring of its module has the formula and the paper"


@pytest.mark.usefixtures("kit_model")
def test_the_best_checkpoint_of_a_run_that_learns_from_its_own_answers_is_that_with_the_highest_reward() -> None:
    """Held-out prompts have no loss: a figure that never comes made none the best, and ended runs with the callback ``best``."""
    host = PluginHost.discover()
    for objective in ("grpo", "rloo", "ppo", "rejection", "online-dpo"):
        raw = {"model": "kit-tiny", "objective": objective, "rewards": {"length": {"most": 8, "ramp": 4}}}
        found = resolve(raw, host)
        assert (found.config.checkpoint.best, found.origins["checkpoint.best"]) == ("eval_reward:max", objective)
        asked = resolve({**raw, "checkpoint": {"best": "eval_entropy:min"}}, host)
        assert asked.config.checkpoint.best == "eval_entropy:min"
        with pytest.raises(ConfigError, match=r"a reward and no loss. Set --checkpoint.best eval_reward:max"):
            resolve({**raw, "checkpoint": {"best": "eval_loss:min"}}, host)
        waits = {**raw, "callbacks": {"early-stopping": {"metric": "eval_loss"}}}
        instead = r"Set --callbacks\.early-stopping\.metric eval_reward --callbacks\.early-stopping\.mode max"
        with pytest.raises(
            ConfigError, match=rf"callbacks\.early-stopping\.metric: .*a reward and no loss\. {instead}"
        ):
            resolve(waits, host)
        resolve({**raw, "callbacks": {"early-stopping": {"metric": "eval_reward", "mode": "max"}}}, host)
    assert resolve({"model": "kit-tiny", "objective": "dpo"}, host).config.checkpoint.best == "eval_loss:min"
