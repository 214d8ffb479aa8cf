"""DuDe against peft's DoRA over its PiSSA."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, peft_lora, place, start

from mt_plugin_adapters.variants.dude import COMPONENT
from mt_plugin_adapters.variants.dude.layer import DudeLinear
from mt_plugin_adapters.variants.pissa.config import PissaConfig

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer() -> DudeLinear:
    return start(COMPONENT.build(PissaConfig(**SMALL)).layer(linear(), place()))


def test_first_values_output_gradients_and_merged_weight_equal_pefts() -> None:
    ours, theirs = layer(), peft_lora(linear(), **SMALL, init_lora_weights="pissa", use_dora=True)
    a, b = theirs.lora_A["default"].weight, theirs.lora_B["default"].weight
    m = theirs.lora_magnitude_vector["default"].weight
    assert_close(ours.delta_weight(), 2.0 * (b @ a))  # the signs of singular vectors are free
    assert_close(ours.weight, theirs.get_base_layer().weight)
    assert_close(ours.lora_magnitude_vector, m)
    assert_close(ours.lora_magnitude_vector, linear().weight.norm(dim=1))
    compare(move(ours, 0.1), theirs, {"lora_A": a, "lora_B": b, "lora_magnitude_vector": m})


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(), first=1e-6)


def test_the_lengths_are_trained_too() -> None:
    ours = layer()
    ours(torch.randn(3, 24)).square().sum().backward()
    assert all(torch.count_nonzero(each.grad) for _, each in ours.own_parameters())
