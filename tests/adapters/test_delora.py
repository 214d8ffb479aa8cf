"""DeLoRA against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import DeloraConfig as PeftConfig
from peft.tuners.delora.layer import DeloraLinear as PeftDelora

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, place, start

from mt_plugin_adapters.variants.delora import COMPONENT
from mt_plugin_adapters.variants.delora.config import DeloraConfig
from mt_plugin_adapters.variants.delora.layer import DeloraLinear

SMALL: dict = {"rank": 4}
NAMES = ("delora_A", "delora_B", "delora_lambda")


def layer(bias: bool = True, **options: object) -> DeloraLinear:
    return start(COMPONENT.build(DeloraConfig(**SMALL, **options)).layer(linear(bias=bias), place()))


def of_peft(bias: bool = True) -> PeftDelora:
    config = PeftConfig(r=4, delora_lambda=15.0)
    return PeftDelora(copy.deepcopy(linear(bias=bias)), "default", config=config, r=4, delora_lambda=15.0)


@pytest.mark.parametrize("bias", [True, False])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool) -> None:
    theirs = of_peft(bias)
    compare(move(layer(bias)), theirs, {name: getattr(theirs, name)["default"] for name in NAMES})


def test_the_first_gradients_equal_pefts() -> None:
    """With B at zero, whose length counts as 1e-4."""
    theirs = of_peft()
    compare(layer(), theirs, {name: getattr(theirs, name)["default"] for name in NAMES})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_however_long_the_matrices_no_update_is_longer_than_the_strength_allows() -> None:
    """In units of the weight's columns: λ is 2."""
    ours = move(layer(strength=2.0), 100.0)
    with torch.no_grad():
        ours.delora_lambda.fill_(2.0)
    relative = ours.delta_weight() / ours.weight.norm(dim=0)
    assert 0.5 < relative.norm() <= 2.0 + 1e-5
