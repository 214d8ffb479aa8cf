"""AuroRA against the paper's formulas."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from paper_formulas import compare_output
from peft_layers import assert_close, linear, move, place, start

from mt_core import UsageError
from mt_plugin_adapters.variants.aurora import COMPONENT
from mt_plugin_adapters.variants.aurora.config import AuroraConfig
from mt_plugin_adapters.variants.aurora.layer import AuroraLinear, splines

SMALL: dict = {"rank": 3, "alpha": 6.0}


def layer(**options: object) -> AuroraLinear:
    return start(COMPONENT.build(AuroraConfig(**SMALL, **options)).layer(linear(), place()))


def cubic(t: Tensor) -> Tensor:
    """The cardinal cubic B-spline with knots 0, 1, 2, 3, 4 as a sum of truncated powers (Schoenberg 1946)."""
    return sum(sign * (t - k).clamp_min(0) ** 3 / 6 for k, sign in enumerate((1, -4, 6, -4, 1))) * (t < 4)


def formula(x: Tensor, w: Tensor, own: Mapping[str, Tensor]) -> Tensor:
    """Equations 4, 6, 7 and 8; the j-th spline begins at -1 + 0.4 (j - 3)."""
    z = x @ own["lora_A"].T
    fixed = torch.tanh(torch.tanh(z) @ own["aurora_H"].T)
    basis = torch.stack([cubic((z + 1) / 0.4 + 3 - j) for j in range(8)], -1).sum(-2)
    return x @ w.T + 2.0 * (fixed + basis @ own["aurora_C"].T) @ own["lora_B"].T


def test_output_and_gradients_are_those_of_the_papers_formula() -> None:
    compare_output(move(layer()), formula)


def test_the_splines_are_cubic_and_sum_to_one_between_the_ends() -> None:
    """Between -1 and 1, whose intervals all have four of them; far outside there is none."""
    z = torch.linspace(-3, 3, 301, dtype=torch.float64)
    values = splines(z)
    assert_close(values, torch.stack([cubic((z + 1) / 0.4 + 3 - j) for j in range(8)], -1), 1e-12)
    inside = z.abs() < 1
    assert_close(values[inside].sum(-1), torch.ones(int(inside.sum()), dtype=torch.float64), 1e-12)
    assert not values[z.abs() > 2.2].any()


def test_it_begins_as_the_base() -> None:
    x = torch.randn(3, 24)
    assert torch.equal(layer()(x), linear()(x))


def test_merging_is_refused_as_no_weight_does_the_same() -> None:
    """Not the paper's either, ``W + s · B σ(A)``, which is far from what was trained."""
    ours, x = move(layer()), torch.randn(200, 24)
    with pytest.raises(UsageError, match="not linear in its inputs"):
        ours.merge()
    trained = ours(x) - linear()(x)
    own = {name: each.detach().double() for name, each in ours.own_parameters()}
    columns = formula(own["lora_A"].T, torch.zeros(16, 3).double(), {**own, "lora_A": torch.eye(3).double()})
    assert ((x.double() @ columns - trained).norm() / trained.norm()) > 0.3


def test_in_half_precision_output_and_gradients_stay_near() -> None:
    ours, x = move(layer()), torch.randn(50, 24)
    half = start(COMPONENT.build(AuroraConfig(**SMALL)).layer(linear().bfloat16(), place()))
    half.load_state_dict(ours.state_dict())
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert_close(out.float(), ours(x), 0.03)
