"""MiLoRA against the paper's formula."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare_with_lora, linear, place, spaced_linear, start

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.milora import COMPONENT
from mt_plugin_adapters.variants.milora.layer import MiloraLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(base: torch.nn.Linear | None = None) -> MiloraLinear:
    return start(COMPONENT.build(LowRankConfig(**SMALL)).layer(base or linear(), place()))


def test_it_begins_as_the_papers_split_of_the_singular_values() -> None:
    """W = W_p + W_m: frozen are the K - r principal components, A and B the r minor ones, each with the root of its values."""
    ours, weight = layer(spaced_linear()), spaced_linear().weight.double()
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    assert_close(ours.weight.double(), u[:, :-4] * s[:-4] @ v[:-4])
    assert_close(ours.delta_weight().double(), u[:, -4:] * s[-4:] @ v[-4:])
    a, b = ours.lora_A.double(), ours.lora_B.double()
    assert_close(2.0 * a @ a.T, torch.diag(s[-4:]))
    assert_close(2.0 * b.T @ b, torch.diag(s[-4:]))


def test_output_gradients_and_merged_weight_are_those_of_pefts_lora_on_what_is_frozen() -> None:
    ours = layer()
    base = linear()
    base.weight.copy_(ours.weight)
    compare_with_lora(ours, base, **SMALL)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(), first=1e-6)
    check_start_and_merge(layer(linear(12, 40)), linear(12, 40), first=1e-6)


def test_in_half_precision_only_the_frozen_rest_is_rounded() -> None:
    base = linear().bfloat16()
    ours = layer(copy.deepcopy(base))
    error = (ours.merged_weight() - base.weight.float()).abs()
    assert (error <= ours.weight.float().abs() * 2**-8 + 1e-9).all()
