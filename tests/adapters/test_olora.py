"""OLoRA against peft's."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, peft_lora, place, start

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.olora import COMPONENT
from mt_plugin_adapters.variants.olora.layer import OloraLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(base: torch.nn.Linear | None = None) -> OloraLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(base or linear(), place()))


def test_first_values_output_gradients_and_merged_weight_equal_pefts() -> None:
    ours, theirs = layer(), peft_lora(linear(), **SMALL, init_lora_weights="olora")
    a, b = theirs.lora_A["default"].weight, theirs.lora_B["default"].weight
    assert_close(ours.lora_A, a)
    assert_close(ours.lora_B, b)
    assert_close(ours.weight, theirs.get_base_layer().weight)
    compare(move(ours), theirs, {"lora_A": a, "lora_B": b})


def test_it_begins_as_the_base_with_orthonormal_columns_and_merges_and_unmerges() -> None:
    b = layer().lora_B.detach()
    assert_close(b.T @ b, torch.eye(4))
    check_start_and_merge(layer(), linear(), first=1e-6)


def test_a_layer_with_more_outputs_than_inputs_begins_as_the_base_too() -> None:
    check_start_and_merge(layer(linear(12, 40)), linear(12, 40), first=1e-6)


def test_in_half_precision_only_the_frozen_rest_is_rounded() -> None:
    base = linear().bfloat16()
    ours = layer(copy.deepcopy(base))
    error = (ours.merged_weight() - base.weight.float()).abs()
    assert (error <= ours.weight.float().abs() * 2**-8 + 1e-9).all()
