"""The line that a person reads."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from mt_core import StepRecord


def record(step: int, loss: float, **evaluation: float) -> StepRecord:
    return StepRecord(step, loss, step * 1e-4, 0.5 + step, 100 * step, 1000.0 * step, 0.25, 0.01, {}, evaluation)


def test_the_line_has_the_mean_loss_and_the_newest_values(build: Any) -> None:
    line = build("task_print", "loss")([record(1, 3.0, eval_loss=9.0), record(2, 2.0, eval_loss=2.5), record(3, 1.0)])
    assert line == "loss 2.0000 | eval_loss 2.5000 | lr 3.00e-04 | norm 3.50 | 2,000 tokens/s | 0.25 GiB"


@pytest.mark.parametrize(
    "records",
    [[], [object()], [SimpleNamespace(loss=1.0)], [SimpleNamespace(loss=None, evaluation=None)], [record(1, math.nan)]],
)
def test_what_is_missing_never_stops_a_run(build: Any, records: list[Any]) -> None:
    line = build("task_print", "loss")(records)
    assert "\n" not in line
    assert not records or not hasattr(records[0], "loss") or records[0].loss is None or line.startswith("loss ")


def test_of_answers_that_are_learned_from_the_line_has_the_reward_alone(build: Any) -> None:
    """A dozen figures of them are in the record, and again of held-out prompts; figures of other evaluations stay."""
    measured = {"reward": 0.5, "reward_exact": 1.0, "answer_tokens": 12.0}
    held_out = {f"eval_{name}": value / 2 for name, value in measured.items()}
    first = StepRecord(1, 0.0, 1e-4, 0.5, 100, 1000.0, 0.25, 0.01, {**measured, "reward": 0.3})
    second = StepRecord(2, 0.0, 1e-4, 0.5, 100, 1000.0, 0.25, 0.01, measured, held_out | {"eval_mmlu": 0.25})
    line = build("task_print", "loss")([first, second])
    assert line.startswith("loss 0.0000 | reward 0.4000 | eval_reward 0.2500 | eval_mmlu 0.2500 | lr 1.00e-04 | ")


def test_figures_of_an_objective_without_answers_stay_on_the_line(build: Any) -> None:
    records = [StepRecord(1, 1.0, 1e-4, 0.5, 9, 9.0, 0.2, 0.0, {"token_accuracy": 0.5}, {"eval_token_accuracy": 0.4})]
    assert "eval_token_accuracy 0.4000" in build("task_print", "loss")(records)


def test_the_losses_of_a_few_sources_are_on_the_line_and_those_of_many_in_the_record_alone(build: Any) -> None:
    few = {f"eval_loss_{number}": 1.0 for number in range(4)}
    many = few | {"eval_loss_4": 1.0}
    assert "eval_loss 2.0000 | eval_loss_0 1.0000" in build("task_print", "loss")(
        [record(1, 1.0, eval_loss=2.0, **few)]
    )
    assert "eval_loss 2.0000 | lr" in build("task_print", "loss")([record(1, 1.0, eval_loss=2.0, **many)])
