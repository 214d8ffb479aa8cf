"""Thinning: a long run stays small on the page, and no spike is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_tools.report.series import Series, round_for_json

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


def fill_series(values: list[float | None], max_groups: int = 10) -> Series:
    series = Series(max_groups)
    for step, value in enumerate(values, 1):
        series.add(step, value)
    return series


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_thinning_keeps_the_lowest_and_the_highest_value_and_every_step(values: list[float]) -> None:
    series = fill_series(list(values))
    groups = list(series.groups())
    assert len(groups) <= 10
    assert min(group.low for group in groups) == min(values)
    assert max(group.high for group in groups) == max(values)
    assert sum(group.count for group in groups) == len(values)
    for group in groups:
        own = values[group.first - 1 : group.last]
        assert (group.low, group.high, group.count) == (min(own), max(own), len(own))
        assert group.mean == pytest.approx(sum(own) / len(own), abs=1e-6)


def test_a_series_is_as_fine_as_its_room_allows() -> None:
    assert fill_series([1.0] * 10).width == 1
    assert fill_series([1.0] * 11).width == 2
    assert fill_series([1.0] * 20).width == 2
    assert fill_series([1.0] * 21).width == 4


def test_a_short_series_is_drawn_as_it_was_measured() -> None:
    assert fill_series([3.0, 2.0, 1.5]).data() == {"w": 1, "x": [1, 2, 3], "y": [3, 2, 1.5]}


def test_what_is_not_finite_is_a_gap_and_is_counted() -> None:
    series = fill_series([3.0, math.nan, None, math.inf, 1.0])
    assert series.data()["y"] == [3, None, None, None, 1]
    assert series.gaps == 3
    assert (series.lowest, series.highest, series.last) == ((5, 1.0), (1, 3.0), (5, 1.0))


def test_a_group_without_a_finite_value_stays_a_gap() -> None:
    series = fill_series([1.0] * 10 + [None] * 20 + [2.0] * 10)
    assert series.width == 4
    assert None in series.data()["y"]
    assert None in series.data()["lo"]


def test_a_rare_figure_is_never_thinned_with_the_others() -> None:
    series = Series(10)
    for step in range(1000, 11_000, 1000):
        series.add(step, step / 1000)
    assert series.data() == {"w": 1, "x": list(range(1000, 11_000, 1000)), "y": list(range(1, 11))}


def test_tokens_between_two_corners_are_a_straight_line() -> None:
    assert fill_series([10.0 * step for step in range(1, 21)]).corners()["x"] == list(range(1, 21))
    wide = fill_series([10.0 * step for step in range(1, 41)])
    assert wide.width == 4
    corners = wide.corners()
    assert corners["y"] == [10 * step for step in corners["x"]]
    assert (corners["x"][0], corners["x"][-1]) == (1, 40)


def test_numbers_in_the_page_are_short() -> None:
    assert round_for_json(0.1234567891) == 0.123457
    assert str(round_for_json(3.0)) == "3"
    assert round_for_json(math.nan) is None
    assert round_for_json(None) is None


def test_a_sum_beyond_every_number_is_infinite_and_no_error() -> None:
    for values, total in (([1e308] * 2, math.inf), ([-1e308] * 2, -math.inf), ([0.1] * 10, 1.0)):
        series = Series()
        for step, value in enumerate(values, start=1):
            series.add(step, value)
        assert series.total == total
