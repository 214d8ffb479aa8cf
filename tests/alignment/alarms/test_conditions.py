"""Conditions of alarms over made-up series: when each holds, and that its state is all there is."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_plugin_alignment.alarms.conditions import Above, Change, Condition, Divergence, Figures, Found, State

SERIES = st.lists(st.floats(-10, 10, allow_nan=False), max_size=60)


def follow(condition: Condition, series: Iterable[Figures]) -> list[Found]:
    """What it finds after each iteration; its state goes through JSON each time, as it does in a checkpoint."""
    state: State = {}
    found = []
    for figures in series:
        state, each = condition.look(json.loads(json.dumps(state, allow_nan=False)), figures)
        found.append(each)
    return found


def first(condition: Condition, values: Sequence[float], figure: str = "x") -> int | None:
    """The iteration, from 1, in which it first holds."""
    found = follow(condition, [{figure: value} for value in values])
    return next((number for number, each in enumerate(found, 1) if each), None)


# ------------------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("values", "when"),
    [
        ([0.9] * 2, None),
        ([0.9] * 3, 3),
        ([0.8] * 9, None),
        ([0.9, 0.9, 0.8, 0.9, 0.9, 0.9], 6),
        ([0.1] * 20 + [0.81] * 3, 23),
    ],
)
def test_a_bound_has_to_be_passed_in_so_many_iterations_in_a_row(values: list[float], when: int | None) -> None:
    assert first(Above("x", 0.8, 3), values) == when


@given(SERIES, st.integers(1, 5))
def test_a_bound_is_what_one_finds_by_looking_back(values: list[float], count: int) -> None:
    held = [number >= count and min(values[number - count : number]) > 1.0 for number in range(1, len(values) + 1)]
    assert [bool(each) for each in follow(Above("x", 1.0, count), [{"x": value} for value in values])] == held


def test_an_iteration_without_the_figure_changes_nothing() -> None:
    pair = {"eval": 1.0, "reward": 1.0}
    for condition in (Above("x", 0.0, 2), Change("x", 2.0, 2), Divergence("eval", "reward", 2)):
        state, found = condition.look({}, {"x": 1.0, **pair})
        assert condition.look(state, {"other": 5.0}) == (state, {})
        assert not found


# ------------------------------------------------------------------------------------------------------------------ changes


@pytest.mark.parametrize(
    ("factor", "values", "when"),
    [
        (2.0, [10, 20, 30, 30.1, 40], 5),
        (2.0, [10, 20] + [30.0] * 9, None),
        (2.0, [10, 20, 31, 29, 31, 31], 6),
        (2.0, [0, 0] + [50] * 9, None),
        (0.1, [1, 3, 1, 0.19, 0.21, 0.19, 0.19], 7),
        (0.1, [1, 3] + [0.2] * 9, None),
    ],
)
def test_a_change_is_against_the_mean_of_the_start(factor: float, values: list[float], when: int | None) -> None:
    assert first(Change("x", factor, 2), values) == when


# -------------------------------------------------------------------------------------------------------------- divergences


def diverges(watched: Sequence[float], reward: Sequence[float], window: int = 10) -> int | None:
    pairs = [{"eval": one, "reward": other} for one, other in zip(watched, reward, strict=True)]
    found = follow(Divergence("eval", "reward", window), pairs)
    return next((number for number, each in enumerate(found, 1) if each), None)


def noisy(values: Iterable[float], seed: int, deviation: float = 0.05) -> list[float]:
    draw = random.Random(seed)
    return [value + draw.gauss(0, deviation) for value in values]


RISE = [n / 100 for n in range(100)]
HUMP = [min(n, 100 - n) / 100 for n in range(100)]
FLAT = [0.5] * 100


@pytest.mark.parametrize("seed", range(20))
def test_a_watched_figure_that_falls_while_the_reward_rises_is_found_soon(seed: int) -> None:
    """It turns after 50 iterations."""
    when = diverges(noisy(HUMP, seed), noisy(RISE, seed + 100))
    assert when is not None
    assert 55 < when < 90


@pytest.mark.parametrize(
    ("watched", "reward"),
    [(RISE, RISE), (FLAT, RISE), (HUMP, FLAT), (FLAT, FLAT), (HUMP, HUMP), (RISE, HUMP)],
    ids=["both rise", "flat", "reward flat", "both flat", "both fall", "reward falls"],
)
def test_noise_is_no_divergence(watched: list[float], reward: list[float]) -> None:
    for seed in range(100):
        assert diverges(noisy(watched, seed), noisy(reward, seed + 1000)) is None


def test_a_single_jump_is_found_once_it_has_lasted() -> None:
    """One jump alone might be noise."""
    when = diverges([0.3] * 3 + [0.1] * 40, [0.1] * 3 + [0.5] * 40, window=3)
    assert when is not None
    assert 6 < when < 30
    assert diverges([0.3] * 40, [0.1] * 40, window=3) is None


def test_three_evaluations_in_a_row_are_compared_with_the_best_three() -> None:
    held_out = [0.1, 0.2, 0.3, 0.31, 0.30, 0.2, 0.15, 0.1, 0.05, 0.0, -0.05, -0.1]
    reward = [n / 10 for n in range(12)]
    pairs = [{"eval": one, "reward": other} for one, other in zip(held_out, reward, strict=True)]
    found = next(each for each in follow(Divergence("eval", "reward", 3), pairs) if each)
    assert found["best"] == pytest.approx((0.3 + 0.31 + 0.30) / 3)
    assert found["before"] == pytest.approx(0.3)
    assert found["value"] < found["best"]
    assert found["now"] > found["before"]


@settings(deadline=None)
@given(SERIES, SERIES)
def test_states_stay_finite_and_small(watched: list[float], reward: list[float]) -> None:
    condition, state = Divergence("eval", "reward", 4), {}
    for one, other in zip(watched, reward, strict=False):
        state, found = condition.look(state, {"eval": one, "reward": other})
        assert all(math.isfinite(value) for value in found.values())
    assert len(json.dumps(state, allow_nan=False)) < 1000
