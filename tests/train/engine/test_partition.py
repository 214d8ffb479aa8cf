"""Stages of a pipeline are the best contiguous runs of layers."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from mt_train.engine.partition import partition

COSTS = st.lists(st.integers(0, 20), min_size=1, max_size=9)


def loads(costs: list[int], bounds: list[int]) -> list[int]:
    return [sum(costs[start:end]) for start, end in pairwise(bounds)]


def worth(costs: list[int], bounds: list[int]) -> tuple[int, int]:
    """What is compared: the dearest stage, then the sum of squares."""
    return max(loads(costs, bounds)), sum(load**2 for load in loads(costs, bounds))


@given(COSTS, st.data())
def test_no_other_partition_is_better(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    bounds = partition(costs, stages)
    assert bounds[0] == 0
    assert bounds[-1] == len(costs)
    assert len(bounds) == stages + 1
    assert all(start < end for start, end in pairwise(bounds)), "a stage is empty"
    every = [[0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), stages - 1)]
    assert worth(costs, bounds) == min(worth(costs, each) for each in every)


def test_embedding_and_head_are_counted_and_the_first_of_equals_is_taken() -> None:
    assert partition([40, 10, 10, 10, 10, 10, 10, 0, 40], 3) == [0, 1, 6, 9]
