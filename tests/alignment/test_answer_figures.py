"""Figures of an iteration's answers: against plain counting, and against numbers that other programs give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_plugin_alignment.objectives.answer_figures import answer_figures, repetition, reward_figures

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
    return {"ids": list(ids), "finish": finish, "group": 0, "rewards": {"own-one": 0.0, "other": 0.0} | rewards}


WEIGHTS = {"own-one": 1.0, "other": 0.5}


def figures(*records: dict[str, Any]) -> dict[str, float]:
    return reward_figures(records, WEIGHTS) | answer_figures(records, WEIGHTS)


def test_means_and_deviations_are_of_the_scores_that_there_are() -> None:
    scores = [0.25, 1.0, None, 3.5]
    found = figures(*[record([1], **{"own-one": score, "other": 2.0}) for score in scores])
    known = torch.tensor([0.25, 1.0, 3.5], dtype=torch.float64)
    assert found["reward_own_one"] == pytest.approx(float(known.mean()))
    assert found["reward"] == pytest.approx(float(known.mean()) + 1.0)
    assert found["score_std_own_one"] == found["score_std"] == pytest.approx(float(known.std()))
    assert (found["reward_other"], found["score_std_other"]) == (2.0, 0.0)
    assert found["answers_unscored"] == 0.25
    assert {name for name in found if name.startswith("reward")} == {"reward", "reward_own_one", "reward_other"}


def test_lengths_and_ends_are_counted() -> None:
    found = figures(record([1, 2, 3], "eos"), record([1], "length"), record([], "stop"), record([1] * 8, "context"))
    assert (found["answer_tokens"], found["answer_tokens_most"], found["answers_cut"]) == (3.0, 8.0, 0.5)
    assert found["answer_repetition"] == pytest.approx(counted([1] * 8) / 4)


def test_a_reward_that_scores_no_answer_of_an_iteration_has_no_figure_in_it() -> None:
    found = figures(record([1], other=None), record([2], other=None))
    assert {name for name in found if name.startswith(("reward_", "score_std_"))} == {
        "reward_own_one",
        "score_std_own_one",
    }


def test_answers_that_nobody_can_score_are_finite_figures() -> None:
    nobody: dict[str, float | None] = {"own-one": None, "other": None}
    found = figures(record([1], **nobody), record([2], **nobody))
    assert all(math.isfinite(value) for value in found.values())
    assert (found["reward"], found["score_std"], found["answers_unscored"]) == (0.0, 0.0, 1.0)
