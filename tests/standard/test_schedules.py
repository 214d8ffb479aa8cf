"""The factor of the base rate at each update, against formulas and the libraries' own schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mt_core import UsageError

relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def library_factors(make: Callable[[Any], Any], steps: int) -> list[float]:
    """The rate that a torch scheduler gives to each update, for a base rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, factors = make(optimizer), []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


def test_the_cosine_is_that_of_torch_without_warmup(build: Any) -> None:
    total, floor = 50, 0.1
    factor = build("schedule", "cosine", {"warmup_ratio": 0.0, "floor_ratio": floor}, total_steps=total)
    reference = library_factors(
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - 1, eta_min=floor), total
    )
    assert [factor(k) for k in range(total)] == pytest.approx(reference, abs=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_the_cosine_is_that_of_transformers_one_update_later(build: Any, warmup: int) -> None:
    """Theirs spends the first update at rate 0, and never reaches the floor."""
    from transformers import get_cosine_schedule_with_warmup

    total = 60
    factor = build("schedule", "cosine", {"warmup_steps": warmup, "floor_ratio": 0.0}, total_steps=total)
    reference = library_factors(lambda optimizer: get_cosine_schedule_with_warmup(optimizer, warmup + 1, total), total)
    assert [factor(k) for k in range(total - 1)] == pytest.approx(reference[1:], abs=1e-12)


def test_a_constant_rate_is_that_of_transformers_one_update_later(build: Any) -> None:
    from transformers import get_constant_schedule_with_warmup

    factor = build("schedule", "constant", {"warmup_steps": 4}, total_steps=20)
    reference = library_factors(lambda optimizer: get_constant_schedule_with_warmup(optimizer, 5), 20)
    assert [factor(k) for k in range(19)] == pytest.approx(reference[1:], abs=1e-12)
    assert [build("schedule", "constant", total_steps=5)(k) for k in range(7)] == [1.0] * 7


def test_the_default_warms_up_for_three_percent_and_ends_at_a_tenth(build: Any) -> None:
    factor = build("schedule", "cosine", total_steps=200)
    assert [factor(k) for k in range(7)] == pytest.approx([(k + 1) / 7 for k in range(7)])
    assert factor(7) < factor(6) == 1.0
    assert factor(199) == pytest.approx(0.1, abs=1e-15)
    halfway = 6 + (199 - 6) / 2
    assert (factor(math.floor(halfway)) + factor(math.ceil(halfway))) / 2 == pytest.approx(0.55, abs=1e-6)


@given(st.integers(1, 400), st.floats(0, 0.99), st.floats(0, 1))
@relaxed
def test_any_run_rises_to_the_peak_and_falls_to_the_floor(build: Any, total: int, ratio: float, floor: float) -> None:
    factor = build("schedule", "cosine", {"warmup_ratio": ratio, "floor_ratio": floor}, total_steps=total)
    factors = [factor(k) for k in range(total)]
    peak = factors.index(1.0)
    assert factors[0] > 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert all(later <= earlier + 1e-12 for earlier, later in zip(factors[peak:], factors[peak + 1 :], strict=False))
    assert all(math.isfinite(value) for value in factors)
    if total > 1:
        assert factors[-1] == pytest.approx(floor, abs=1e-12)
        assert factor(total + 100) == factors[-1]


@pytest.mark.parametrize("name", ["constant", "cosine"])
def test_a_run_of_one_update_trains_at_the_base_rate(build: Any, name: str) -> None:
    assert build("schedule", name, {"warmup_ratio": 0.5}, total_steps=1)(0) == 1.0


@pytest.mark.parametrize("name", ["constant", "cosine"])
def test_a_warmup_that_fills_the_run_is_refused(build: Any, name: str) -> None:
    assert build("schedule", name, {"warmup_steps": 8}, total_steps=10)(8) == 1.0
    with pytest.raises(
        UsageError, match=r"schedule\.warmup_steps=9 leaves nothing of a run of 10 updates; set it to 8 at most"
    ):
        build("schedule", name, {"warmup_steps": 9}, total_steps=10)


@pytest.mark.parametrize(
    "values",
    [{"warmup_ratio": 1.0}, {"warmup_ratio": -0.1}, {"warmup_steps": -1}, {"floor_ratio": 1.5}, {"warmup_steps": 1.5}],
)
def test_values_out_of_bounds_are_refused(component: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        component("schedule", "cosine").config(**values)
