"""Figures of an iteration's answers: against plain counting, and against numbers that other programs give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_plugin_alignment.answer_figures import answer_figures, has_spread, repetition

NAN = math.nan
IDS = st.lists(st.sampled_from([0, 1, 2, 5, 151_935, 2**31 - 1]), max_size=40)


def counted(ids: Sequence[int], n: int = 4) -> float:
    """1 - different n-grams / n-grams, as https://arxiv.org/abs/1908.04319 (equation 9) has it."""
    ngrams = [tuple(ids[place : place + n]) for place in range(len(ids) - n + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


@settings(max_examples=300, deadline=None)
@given(IDS)
def test_repetition_is_the_share_of_4_grams_that_came_before(ids: list[int]) -> None:
    assert repetition(ids) == pytest.approx(counted(ids), abs=1e-15)


def test_repetition_of_texts_that_one_can_count() -> None:
    assert repetition([]) == repetition([7, 7, 7, 7]) == 0.0
    assert repetition([7] * 16) == pytest.approx(12 / 13)
    assert repetition([1, 2, 3, 4] * 2) == pytest.approx(1 / 5), "1 2 3 4 comes twice among five"
    assert repetition(list(range(1000))) == 0.0


def record(ids: Sequence[int], finish: str = "eos", **rewards: float | None) -> dict[str, Any]:
    return {"ids": list(ids), "finish": finish, "rewards": {"own-one": 0.0, "other": 0.0} | rewards}


def figures(*records: dict[str, Any], totals: Sequence[float], group: int = 2) -> dict[str, float]:
    return answer_figures(records, np.array(totals), rewards=["own-one", "other"], group=group)


def test_means_and_deviations_are_of_the_scores_that_there_are() -> None:
    scores = [0.25, 1.0, None, 3.5]
    records = [record([1], **{"own-one": score}) for score in scores]
    found = figures(*records, totals=[1.0, 2.0, NAN, 4.0])
    known = torch.tensor([0.25, 1.0, 3.5], dtype=torch.float64)
    assert found["reward_own_one"] == pytest.approx(float(known.mean()))
    assert found["score_std_own_one"] == pytest.approx(float(known.std()))
    assert found["score_std"] == pytest.approx(float(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).std()))
    assert (found["reward_other"], found["score_std_other"]) == (0.0, 0.0)
    assert found["answers_unscored"] == 0.25
    assert {name for name in found if name.startswith("reward")} == {"reward", "reward_own_one", "reward_other"}


def test_lengths_and_ends_are_counted() -> None:
    found = figures(
        record([1, 2, 3], "eos"), record([1], "length"), record([], "stop"), record([1] * 8, "context"), totals=[0] * 4
    )
    assert (found["answer_tokens"], found["answer_tokens_most"], found["answers_cut"]) == (3.0, 8.0, 0.5)
    assert found["answer_repetition"] == pytest.approx(counted([1] * 8) / 4)


def test_answers_that_nobody_can_score_are_finite_figures() -> None:
    found = figures(record([1], other=None), record([2], other=None), totals=[NAN, NAN])
    assert all(math.isfinite(value) for value in found.values())
    assert (found["reward"], found["score_std"], found["groups_alike"], found["answers_unscored"]) == (
        0.0,
        0.0,
        1.0,
        1.0,
    )


def test_a_group_has_spread_where_two_of_its_scores_differ() -> None:
    totals = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [NAN, 1.0, NAN], [NAN, NAN, NAN], [NAN, -1.0, 0.0]])
    assert has_spread(totals).tolist() == [False, True, False, False, True]
    found = figures(*[record([1]) for _ in range(15)], totals=totals.ravel().tolist(), group=3)
    assert found["groups_alike"] == pytest.approx(3 / 5)


def test_single_answers_have_no_groups_to_be_alike() -> None:
    assert "groups_alike" not in figures(record([1]), record([2]), totals=[0.0, 1.0], group=1)
