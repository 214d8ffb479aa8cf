"""Which parameters freeze trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tiny_model import tiny_model

from mt_core import ConfigError, UsageError
from mt_plugin_adapters.variants.freeze import COMPONENT
from mt_plugin_adapters.variants.freeze.config import FreezeConfig

SMALL: dict = {"blocks": 1}


def trained_names(n_layers: int = 12, **options: object) -> list[str]:
    return COMPONENT.build(FreezeConfig(**options)).trainable_parameters(tiny_model(n_layers))


def test_the_last_blocks_are_trained_whole_and_nothing_else() -> None:
    names = [name for name, _ in tiny_model(12).named_parameters()]
    last = ("model.layers.10.", "model.layers.11.")
    assert trained_names(blocks=2) == [name for name in names if name.startswith(last)]
    assert len(trained_names(blocks=12)) == sum(".layers." in name for name in names)


def test_patterns_add_what_is_outside_the_blocks() -> None:
    assert trained_names(blocks=0, also=("lm_head.*", "model.norm.weight")) == ["model.norm.weight", "lm_head.weight"]
    assert set(trained_names(blocks=1, also=("*.layers.0.mlp.*",))) - set(trained_names(blocks=1)) == {
        f"model.layers.0.mlp.{each}_proj.weight" for each in ("gate", "up", "down")
    }


def test_more_blocks_than_there_are_and_patterns_that_match_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match=r"adapter\.blocks: 13 is more than the 12 blocks"):
        trained_names(blocks=13)
    with pytest.raises(UsageError, match=r"adapter\.also: 'head\.\*' matches none"):
        trained_names(also=("head.*",))
    with pytest.raises((ValueError, ConfigError), match="leave nothing to train"):
        FreezeConfig(blocks=0)
