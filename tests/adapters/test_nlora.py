"""NLoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from formula import check_formula
from peft_layers import check_start_and_merge, linear, move, place, start

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.nlora import COMPONENT
from mt_plugin_adapters.variants.nlora.layer import NystromLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}
EXACT_WITHIN = 0.3
"""Of a random weight; the three pieces are as large as its numbers."""


def layer() -> NystromLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(linear(), place()))


def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula() -> None:
    """W + alpha / rank · B N A."""
    check_formula(move(layer()), lambda w, lora_A, lora_B, lora_AB: w + 2.0 * lora_B @ lora_AB @ lora_A)


def test_the_three_matrices_begin_as_pieces_of_the_weight_which_stays() -> None:
    ours, weight = layer(), linear().weight
    assert torch.equal(ours.weight, weight)
    assert torch.equal(ours.lora_A, weight[:4, :])
    assert torch.equal(ours.lora_B, weight[:, :4])
    assert torch.equal(ours.lora_AB, weight[:4, :4])


def test_it_begins_near_the_base_and_merges_and_unmerges() -> None:
    """Not as the base: the product of three pieces is in the first output, here 15 % of it."""
    check_start_and_merge(layer(), linear(), first=0.2)
    assert not torch.equal(layer()(torch.ones(1, 24)), linear()(torch.ones(1, 24)))
