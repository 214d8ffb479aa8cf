"""Shots are of the question's own group, never itself, and follow from the file or from (seed, file and line)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mt_core import DataError
from mt_plugin_evals.choices.questions import Question
from mt_plugin_evals.choices.shots import Shots


def question(number: int, group: str = "", folder: str = "a") -> Question:
    return Question(
        id=f"{folder}/q.csv:{number}",
        fields={"question": f"Question {number}?"},
        choices=("yes", "no"),
        answer=0,
        right=frozenset({0}),
        group=group,
    )


POOL = [question(number, group) for number in range(1, 31) for group in ("x", "y")]


def numbers(found: list[Question]) -> list[int]:
    return [int(each.id.rpartition(":")[2]) for each in found]


def test_file_order_takes_the_first_ones_and_leaves_the_question_itself_out() -> None:
    shots = Shots(POOL, count=3, order="file", seed=0)
    assert numbers(shots.of(question(20, "x"))) == [1, 2, 3]
    assert numbers(shots.of(question(2, "x"))) == [1, 3, 4]
    assert {each.group for each in shots.of(question(2, "y"))} == {"y"}


def test_random_shots_follow_from_seed_file_and_line_alone() -> None:
    shots = Shots(POOL, count=4, order="random", seed=7)
    found = {number: numbers(shots.of(question(number, "x"))) for number in range(1, 31)}
    again = Shots(POOL, count=4, order="random", seed=7)
    moved = {number: numbers(again.of(question(number, "x", folder="elsewhere/b"))) for number in range(30, 0, -1)}
    assert moved == found, "neither the order of the questions nor the folder matters"
    assert len(set(map(tuple, found.values()))) > 20, "each question has its own"
    assert all(number not in own and len(set(own)) == 4 for number, own in found.items())
    other = Shots(POOL, count=4, order="random", seed=8)
    assert numbers(other.of(question(1, "x"))) != found[1]


def test_random_shots_that_drew_the_question_are_filled_up() -> None:
    shots = Shots(POOL[:8:2], count=3, order="random", seed=0)
    for number in range(1, 5):
        assert sorted([*numbers(shots.of(question(number, "x"))), number]) == [1, 2, 3, 4]


@pytest.mark.parametrize("order", ["file", "random"])
def test_too_few_of_a_group_are_an_error(order: str) -> None:
    shots = Shots(POOL[:6], count=3, order=order, seed=0)  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"q\.csv:1: shots is 3, and there are 2 other questions of x to take them from"
    ):
        shots.of(question(1, "x"))
    assert shots.of(replace(question(1, "x"), fields={"question": "another"}))
    with pytest.raises(DataError, match=r"there are 0 other questions of z"):
        shots.of(question(1, "z"))


def test_no_shots_need_no_pool() -> None:
    assert Shots([], count=0, order="file", seed=0).of(question(1)) == []
