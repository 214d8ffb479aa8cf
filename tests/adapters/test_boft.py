"""BOFT against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from peft import BOFTConfig
from peft.tuners.boft import layer as peft_boft
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, place, start

from mt_core import GroupOptions, UsageError, split_decay
from mt_plugin_adapters.variants.boft import COMPONENT
from mt_plugin_adapters.variants.boft.config import BoftConfig
from mt_plugin_adapters.variants.boft.layer import BoftLinear

SMALL: dict = {"block_size": 4, "factors": 2}


class BlockDiagonal:
    """What peft's CUDA extension computes, which it asks for with more than one factor."""

    @staticmethod
    def forward(blocks: Tensor) -> list[Tensor]:
        return [torch.stack([torch.block_diag(*each) for each in blocks])]

    @staticmethod
    def backward(grad: Tensor, blocks: Tensor) -> list[Tensor]:
        size = blocks.shape[-1]
        return [torch.stack([grad[:, i : i + size, i : i + size] for i in range(0, grad.shape[-1], size)], 1)]


def layer(bias: bool = True, **options: object) -> BoftLinear:
    return start(COMPONENT.build(BoftConfig(**{**SMALL, **options})).layer(linear(32, bias=bias), place()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("block_size", "factors"), [(8, 1), (4, 2), (4, 3), (2, 4), (8, 3)])
def test_output_gradients_and_merged_weight_equal_pefts(
    bias: bool, block_size: int, factors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peft_boft, "get_fbd_cuda", lambda: BlockDiagonal)
    config = BOFTConfig(boft_block_size=block_size, boft_n_butterfly_factor=factors)
    theirs = peft_boft.Linear(copy.deepcopy(linear(32, bias=bias)), "default", config=config)
    ours = move(layer(bias, block_size=block_size, factors=factors), 0.2)
    compare(ours, theirs, {name: getattr(theirs, name)["default"] for name in ("boft_R", "boft_s")})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(32))


def test_weight_decay_takes_nothing_off_the_gains() -> None:
    """They begin at 1, where nothing is changed: decay would take the whole weight away, and not the adapter."""
    own = [(name, each) for name, each in layer().own_parameters()]
    decays = {
        id(each): group["weight_decay"]
        for group in split_decay(own, GroupOptions(weight_decay=0.1))
        for each in group["params"]
    }
    assert {name: decays[id(each)] for name, each in own} == {"boft_R": 0.1, "boft_s": 0.0}


def test_every_input_reaches_every_rotated_input_with_enough_factors() -> None:
    """Four factors of eight blocks of 4 mix 4 · 2³ = 32; three of them do not."""
    for factors, all_reached in ((4, True), (3, False)):
        turned = move(layer(factors=factors)).transformed_input(torch.eye(32))
        assert bool((turned.abs() > 1e-9).all()) is all_reached


@pytest.mark.parametrize("options", [{"block_size": 5}, {"factors": 5}])
def test_blocks_and_factors_that_do_not_fit_are_refused(options: dict) -> None:
    with pytest.raises(UsageError, match="do not fit the 32 inputs"):
        layer(**options)
