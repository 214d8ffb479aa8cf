"""The rule by which a trial ends early, and that it is Optuna's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_train import context
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import CallbackContext, MtError
from mt_plugin_search.pruning import MedianPruning, MedianPruningConfig
from mt_plugin_search.trials import read_run

START = CallbackContext(step=0, total_steps=4, output=None, evaluates=True)
TRIAL = st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3)


def pruning(history: list[dict[int, float]], **options: Any) -> MedianPruning:
    Path("history.json").write_text(json.dumps(history))
    callback = MedianPruning(MedianPruningConfig(history="history.json", **options))
    callback.on_run_start(START)
    return callback


def stops(callback: MedianPruning, step: int, value: float) -> bool:
    asked = callback.on_evaluate_end(context(step, "eval_loss", value))
    return asked is not None and asked.stop


def test_a_trial_ends_when_its_best_is_worse_than_the_median_at_this_step() -> None:
    history = [{1: 3.0, 2: 1.0}, {1: 5.0, 2: 2.0}, {1: 4.0, 2: 3.0}]
    callback = pruning(history, after=3)
    assert not stops(callback, 1, 4.0)
    assert stops(callback, 2, 2.1)
    assert stops(pruning(history, after=3), 1, 4.1)
    assert not stops(pruning(history, after=4), 1, 9.0), "too few trials"
    assert not stops(pruning(history, after=3, first_step=2), 1, 9.0), "too early"
    assert stops(pruning(history, after=3, mode="max"), 1, 3.9)


@settings(deadline=None, max_examples=40)
@given(st.lists(TRIAL, min_size=1, max_size=7), TRIAL, st.integers(1, 4))
def test_the_callback_decides_as_optuna_does_in_a_study(
    history: list[list[float]], own: list[float], after: int
) -> None:
    """The other side is Optuna's documented use: report, then ``should_prune``."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=after))
    for figures in history:
        trial = study.ask()
        for step, figure in enumerate(figures, start=1):
            trial.report(figure, step)
        study.tell(trial, figures[-1])
    trial = study.ask()
    callback = pruning([dict(enumerate(figures, start=1)) for figures in history], after=after)
    for step, figure in enumerate(own, start=1):
        trial.report(figure, step)
        assert stops(callback, step, figure) == trial.should_prune()


def test_a_resumed_run_remembers_its_figures() -> None:
    history = [{1: 1.0, 2: 2.0}]
    whole = pruning(history, after=1)
    assert not stops(whole, 1, 0.5)
    part = pruning(history, after=1)
    part.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert not stops(part, 2, 9.0), "0.5 was its best, and better than the median"
    assert stops(pruning(history, after=1), 2, 9.0)


def test_an_evaluation_that_is_not_due_decides_nothing_and_leaves_no_figure(tmp_path: Path) -> None:
    Path("history.json").write_text("[]")
    callback = MedianPruning(MedianPruningConfig(history="history.json", metric="eval_mmlu_accuracy", mode="max"))
    callback.on_run_start(replace(START, config={"evaluations": [{"name": "mmlu", "every": 2}]}))
    assert callback.on_evaluate_end(context(1, "eval_loss", 1.0)) is None
    assert callback.on_evaluate_end(context(2, "eval_mmlu_accuracy", 0.5)) is None
    assert callback.state_dict() == {"figures": [[2, 0.5]]}
    with pytest.raises(MtError, match="eval_mmlu_accuracy, which never comes"):
        callback.on_evaluate_end(context(4, "eval_mmlu_f1", 0.5))
    records = [{"step": 1, "eval_loss": 1.0}, {"step": 2, "eval_loss": 1.0, "eval_mmlu_accuracy": 0.5}]
    records.append({"step": 3, "eval_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (tmp_path / "about.json").write_text('{"total_steps": 4}')
    left = read_run(tmp_path, "eval_mmlu_accuracy")
    assert (left.value, left.evaluations, left.steps) == (0.5, {2: 0.5}, 3)
    with pytest.raises(MtError, match="eval_mmlu_f1, which never comes"):
        read_run(tmp_path, "eval_mmlu_f1")


def test_a_figure_that_is_no_number_ends_the_run_and_can_be_saved() -> None:
    callback = pruning([])
    assert stops(callback, 1, math.nan)
    state = json.loads(json.dumps(callback.state_dict(), allow_nan=False))
    callback.load_state_dict(state)


def test_what_can_never_work_is_said_before_the_first_step_or_at_the_first_evaluation() -> None:
    Path("history.json").write_text("[]")
    callback = MedianPruning(MedianPruningConfig(history="history.json"))
    with pytest.raises(MtError, match="holds no rows out"):
        callback.on_run_start(CallbackContext(step=0, total_steps=4, output=None, evaluates=False))
    with pytest.raises(MtError, match="mt-search writes it"):
        MedianPruning(MedianPruningConfig(history="missing.json")).on_run_start(START)
    for text in ("[1]", "{", '[{"a": 1}]', '{"a": 1}'):
        Path("history.json").write_text(text)
        with pytest.raises(MtError, match="does not hold the figures"):
            callback.on_run_start(START)
    with pytest.raises(MtError, match=r"waits for eval_los, which never comes. Did you mean 'eval_loss'\?"):
        stops(pruning([], metric="eval_los"), 1, 1.0)
