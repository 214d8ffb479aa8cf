"""LoHa against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import LoHaConfig
from peft.tuners.loha.layer import Linear as PeftLoha

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, place, start

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.loha import COMPONENT
from mt_plugin_adapters.variants.loha.layer import HadamardLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}
NAMES = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")


def layer(bias: bool = True) -> HadamardLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(linear(bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool) -> None:
    base = copy.deepcopy(linear(bias=bias))
    theirs = PeftLoha(base, "default", config=LoHaConfig(r=4, alpha=8.0), r=4, alpha=8.0)
    compare(move(layer(bias)), theirs, {name: getattr(theirs, name)["default"] for name in NAMES})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_the_update_has_the_square_of_the_rank() -> None:
    """Here 16, of two products of rank 4."""
    assert torch.linalg.matrix_rank(move(layer()).delta_weight()) == 16
