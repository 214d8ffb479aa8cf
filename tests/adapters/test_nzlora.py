"""NZLoRA: what both matrices begin as."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare_with_lora, linear, place, start

from mt_plugin_adapters.variants.nzlora import COMPONENT
from mt_plugin_adapters.variants.nzlora.config import NonZeroConfig
from mt_plugin_adapters.variants.nzlora.layer import NonZeroLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(base: torch.nn.Linear | None = None, **options: object) -> NonZeroLinear:
    return start(COMPONENT.build(NonZeroConfig(**{**SMALL, **options})).layer(base or linear(), place()))


@pytest.mark.parametrize("exact", [True, False])
def test_output_gradients_and_merged_weight_are_those_of_pefts_lora_on_what_is_frozen(exact: bool) -> None:
    ours = layer(exact=exact)
    base = linear()
    base.weight.copy_(ours.weight)
    compare_with_lora(ours, base, **SMALL)


def test_both_matrices_begin_with_the_papers_deviations() -> None:
    """beta / sqrt(width); 5 %: four deviations of an estimate from 3,200 numbers."""
    ours = layer(linear(800, 200), scale_a=2.0, scale_b=0.5, rank=16, alpha=16.0)
    assert ours.lora_A.std().item() == pytest.approx(2.0 * 800**-0.5, rel=0.05)
    assert ours.lora_B.std().item() == pytest.approx(0.5 * 200**-0.5, rel=0.05)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(), first=1e-6)


def test_without_exact_the_weight_stays_and_the_first_output_has_the_noise_of_the_product() -> None:
    ours = layer(exact=False)
    assert torch.equal(ours.weight, linear().weight)
    assert_close(ours.merged_weight() - linear().weight, 2.0 * ours.lora_B @ ours.lora_A)
    assert ours.lora_B.norm() > 0
