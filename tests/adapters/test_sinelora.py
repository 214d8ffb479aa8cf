"""SineLoRA against the paper's formula."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_with_formula
from peft_layers import assert_close, check_start_and_merge, linear, move, place, start

from mt_plugin_adapters.variants.sinelora import COMPONENT
from mt_plugin_adapters.variants.sinelora.config import SineLoraConfig
from mt_plugin_adapters.variants.sinelora.layer import SineLinear

SMALL: dict = {"rank": 4, "alpha": 8.0, "frequency": 20.0}
"""A tenth of the default, which would make rounding ten times as large: layouts are compared within 2e-6."""


def layer(**options: object) -> SineLinear:
    return start(COMPONENT.build(SineLoraConfig(**{**SMALL, **options})).layer(linear(), place()))


@pytest.mark.parametrize(("options", "gain"), [({}, 24**0.5), ({"gain": 3.0}, 3.0)])
@pytest.mark.parametrize("frequency", [20.0, 200.0])
def test_output_gradients_and_merged_weight_are_those_of_the_papers_formula(
    frequency: float, options: dict, gain: float
) -> None:
    """Equation 3 with U Vᵀ = B A, and LoRA's scale. Angles of some hundred cost two digits: 1e-4."""
    formula = lambda w, p: w + 2.0 * torch.sin(frequency * p["lora_B"] @ p["lora_A"]) / gain  # noqa: E731
    compare_with_formula(move(layer(frequency=frequency, **options)), formula, 1e-4)


def test_it_begins_as_the_base_and_merges_and_unmerges() -> None:
    check_start_and_merge(layer(), linear())


def test_the_update_has_full_rank() -> None:
    """Here 16, of a product of rank 4."""
    assert torch.linalg.matrix_rank(move(layer()).delta_weight()) == 16


def test_it_is_linear_in_its_input() -> None:
    """What a sine of the output would not be."""
    ours, x = move(layer()), torch.randn(3, 24)
    assert_close(ours(3 * x) - ours.bias, 3 * (ours(x) - ours.bias))


def test_in_half_precision_the_angles_are_not_rounded() -> None:
    ours = move(start(COMPONENT.build(SineLoraConfig(rank=4)).layer(linear().bfloat16(), place())))
    exact = torch.sin(200.0 * ours.lora_B.double() @ ours.lora_A.double()) / 24**0.5
    assert_close(ours.update(torch.bfloat16).double(), exact, 3e-3)
