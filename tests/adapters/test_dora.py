"""DoRA against peft's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from peft_layers import check_start_and_merge, compare, linear, move, peft_lora, place, start

from mt_core import LowRankConfig
from mt_plugin_adapters.variants.dora.layer import DoraLinear

SMALL: dict = {"rank": 4, "alpha": 8.0}


def layer(bias: bool = True) -> DoraLinear:
    return start(DoraLinear.of(linear(bias=bias), place(), LowRankConfig(**SMALL)))


@pytest.mark.parametrize("bias", [True, False])
def test_output_gradients_and_merged_weight_equal_pefts(bias: bool) -> None:
    ours, theirs = move(layer(bias)), peft_lora(linear(bias=bias), **SMALL, use_dora=True)
    compare(
        ours,
        theirs,
        {
            "lora_A": theirs.lora_A["default"].weight,
            "lora_B": theirs.lora_B["default"].weight,
            "lora_magnitude_vector": theirs.lora_magnitude_vector["default"].weight,
        },
    )


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear(), first=1e-6)


def test_in_half_precision_the_first_gains_are_one_to_the_bit() -> None:
    base = linear().bfloat16()
    ours = start(DoraLinear.of(base, place(), LowRankConfig(**SMALL)))
    x = torch.randn(3, 24, dtype=torch.bfloat16)
    assert torch.equal(ours(x), base(x))


def test_a_row_of_zeros_stays_finite() -> None:
    base = linear()
    base.weight[3] = 0
    ours = start(DoraLinear.of(base, place(), LowRankConfig(**SMALL)))
    out = ours(torch.randn(3, 24))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(each.grad.isfinite().all() for _, each in ours.own_parameters())


def test_no_second_tensor_of_the_weights_size_is_made_in_training() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    made: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            # views and detached aliases of the weight are not made
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() != ours.weight.data_ptr():
                made.append(out.numel())
            return out

    ours = start(DoraLinear.of(linear(64, 48), place(), LowRankConfig(**SMALL)))
    with Sizes():
        ours(torch.randn(5, 64, requires_grad=True)).sum().backward()
    assert made
    assert max(made) < 64 * 48
