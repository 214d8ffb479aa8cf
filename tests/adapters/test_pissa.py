"""PiSSA against peft's, and back to the base that it was."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import assert_close, check_start_and_merge, compare, linear, move, peft_lora, place, start

from mt_plugin_adapters.variants.pissa import COMPONENT
from mt_plugin_adapters.variants.pissa.config import PissaConfig
from mt_plugin_adapters.variants.pissa.layer import PissaLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(**options: object) -> PissaLinear:
    return start(COMPONENT.build(PissaConfig(**SMALL, **options)).layer(linear(), place()))


def test_output_gradients_and_merged_weight_equal_pefts() -> None:
    ours, theirs = layer(), peft_lora(linear(), **SMALL, init_lora_weights="pissa")
    a, b = theirs.lora_A["default"].weight, theirs.lora_B["default"].weight
    assert_close(ours.delta_weight(), 2.0 * (b @ a))  # the signs of singular vectors are free
    assert_close(ours.weight, theirs.get_base_layer().weight)
    compare(move(ours), theirs, {"lora_A": a, "lora_B": b})


def test_the_fast_decomposition_takes_the_same_directions() -> None:
    """The error falls with every iteration by the ratio of neighbouring singular values, here 0.95."""
    exact = layer().delta_weight()
    assert_close(layer(iterations=60).delta_weight(), exact, 1e-3)
    assert 1e-3 < ((layer(iterations=1).delta_weight() - exact).norm() / exact.norm()) < 0.6


def test_the_fast_decomposition_leaves_the_random_state_alone_and_follows_the_seed() -> None:
    adapter, bases = COMPONENT.build(PissaConfig(**SMALL, iterations=1)), (linear(), linear())
    before = torch.get_rng_state()
    first = start(adapter.layer(bases[0], place()))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(start(adapter.layer(bases[1], place())).lora_A, first.lora_A)


@pytest.mark.parametrize("iterations", [None, 4])
def test_it_begins_as_the_base_and_merges_and_unmerges(iterations: int | None) -> None:
    check_start_and_merge(layer(iterations=iterations), linear(), first=1e-6)


def test_in_half_precision_only_the_frozen_rest_is_rounded() -> None:
    base = linear().bfloat16()
    ours = start(COMPONENT.build(PissaConfig(**SMALL)).layer(copy.deepcopy(base), place()))
    error = (ours.merged_weight() - base.weight.float()).abs()
    assert (error <= ours.weight.float().abs() * 2**-8 + 1e-9).all()


def test_to_the_base_as_it_was_a_trained_adapter_is_a_lora_of_twice_the_rank() -> None:
    """What an export to plain LoRA needs: the first A and B, which the base as it was gives again."""
    trained, again = move(layer()), layer()
    assert all(
        torch.equal(first, second) for first, second in zip(layer().parameters(), again.parameters(), strict=True)
    )
    theirs = peft_lora(linear(), rank=8, alpha=16.0)
    theirs.lora_A["default"].weight.data = torch.cat([trained.lora_A, again.lora_A]).detach()
    theirs.lora_B["default"].weight.data = torch.cat([trained.lora_B, -again.lora_B], 1).detach()
    x = torch.randn(5, 24)
    assert_close(theirs(x), trained(x))
