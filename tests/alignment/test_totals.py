"""Sums of rewards that are of some prompts only, against the sums and the advantages that TRL's formula gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mt_plugin_alignment.advantages import advantages, normalise_each
from mt_plugin_alignment.objectives.answer_table import groups_alike
from mt_plugin_alignment.objectives.totals import total_of, totals_of, weights_by_group

WEIGHTS = {"sums": 1.0, "code": 0.5, "watched": 0.0}


def record(group: int, sums: float | None, code: float | None, watched: float | None = None) -> dict[str, Any]:
    return {"group": group, "finish": "eos", "rewards": {"sums": sums, "code": code, "watched": watched}}


OF_TASKS = [record(0, score, None) for score in (1.0, 0.0, 1.0)] + [record(1, None, score) for score in (2.0, 6.0, 1.0)]


def test_a_reward_counts_for_the_prompts_that_it_scores_answers_to() -> None:
    assert totals_of(OF_TASKS, WEIGHTS).tolist() == [1.0, 0.0, 1.0, 1.0, 3.0, 0.5]
    assert groups_alike(OF_TASKS, WEIGHTS, 3).tolist() == [False, False]


def test_advantages_of_two_tasks_are_those_of_nansum() -> None:
    """TRL sums what is no NaN (``nansum``), takes the mean of the group off, and divides by its deviation and 1e-4."""
    columns = np.array([[each["rewards"][name] for each in OF_TASKS] for name in WEIGHTS], dtype=float)
    summed = np.nansum(columns * np.array([*WEIGHTS.values()])[:, None], axis=0).reshape(-1, 3)
    theirs = (summed - summed.mean(1, keepdims=True)) / (summed.std(1, ddof=1, keepdims=True) + 1e-4)
    ours = advantages(totals_of(OF_TASKS, WEIGHTS).reshape(-1, 3), baseline="group", scale="group")
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_each_reward_by_itself_learns_from_its_own_prompts() -> None:
    columns_RPG = np.array([[each["rewards"][name] for each in OF_TASKS] for name in WEIGHTS], dtype=float)
    found = normalise_each(columns_RPG.reshape(3, 2, 3), np.array([*WEIGHTS.values()]), baseline="group", scale="group")
    own = [
        advantages(columns_RPG[number].reshape(2, 3)[number : number + 1], baseline="group", scale="group")
        for number in (0, 1)
    ]
    summed = np.concatenate([own[0], 0.5 * own[1]])
    np.testing.assert_allclose(found, (summed - summed.mean()) / (summed.std(ddof=1) + 1e-4), rtol=1e-12)


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([record(0, 1.0, None), record(0, 1.0, 2.0)], [math.nan, 2.0]),
        ([record(0, 1.0, None)], [math.nan]),
        ([record(0, None, None, 3.0), record(0, None, None, 1.0)], [math.nan, math.nan]),
    ],
    ids=["some answers of the prompt", "the only answer to the prompt", "nobody who counts scores any"],
)
def test_a_score_that_is_missing_leaves_an_answer_without_a_sum(records: Any, wanted: list[float]) -> None:
    np.testing.assert_equal(totals_of(records, WEIGHTS), wanted)


def test_a_greedy_answer_is_summed_as_those_that_are_compared_with_it() -> None:
    by_group = weights_by_group(OF_TASKS, WEIGHTS)
    assert total_of({"sums": None, "code": 4.0, "watched": None}, by_group[1]) == 2.0
    assert math.isnan(total_of({"sums": None, "code": 4.0, "watched": None}, by_group[0]))
