"""Early stopping and the best checkpoint: by any figure, and the same after a resume."""

from __future__ import annotations

from typing import Any

import pytest

from mt_core import CallbackContext, Control, MtError, StepRecord
from mt_plugin_callbacks.stopping import Best, BestConfig, EarlyStopping, EarlyStoppingConfig
from mt_train import train
from mt_train.checkpoint.store import find


def start(callback: Any, best: str = "eval_loss:min", *, evaluates: bool = True, every: int | None = 1) -> Any:
    """What the callback says when a run of 99 steps starts."""
    config = {"checkpoint": {"best": best, "keep_best": 1}, "eval": {"every_steps": every}}
    return callback.on_run_start(
        CallbackContext(step=0, total_steps=99, output=None, config=config, evaluates=evaluates)
    )


def scene(callback: Any, best: str = "eval_loss:min", *, evaluates: bool = True) -> Any:
    start(callback, best, evaluates=evaluates)
    return callback


def after(step: int, loss: float = 1.0, **evaluation: float) -> CallbackContext:
    record = StepRecord(step, loss, 0.1, 1.0, 9, 1.0, 1.0, 0.0, {"accuracy": 0.5}, evaluation)
    return CallbackContext(step=step, total_steps=99, output=None, record=record)


def stops(callback: EarlyStopping, values: list[float]) -> int | None:
    """The place of the value at which the run ends."""
    for place, value in enumerate(values):
        answer = callback.on_step_end(after(place, eval_loss=value))
        if isinstance(answer, Control) and answer.stop:
            return place
    return None


def test_the_run_ends_when_patience_is_used_up() -> None:
    assert stops(scene(EarlyStopping(EarlyStoppingConfig(patience=2))), [3, 2, 2.5, 1, 1.5, 1.2, 0.5]) == 5
    assert stops(scene(EarlyStopping(EarlyStoppingConfig(patience=2))), [3, 2, 1, 0.5]) is None
    assert stops(scene(EarlyStopping(EarlyStoppingConfig(patience=1, min_delta=0.5))), [3, 2, 1.6, 1]) == 2
    assert stops(scene(EarlyStopping(EarlyStoppingConfig(patience=1)), "eval_loss:max"), [1, 2, 1.5]) == 2
    assert stops(scene(EarlyStopping(EarlyStoppingConfig(patience=2))), [3, float("nan"), float("nan")]) == 2


def test_steps_without_an_evaluation_do_not_count() -> None:
    callback = scene(EarlyStopping(EarlyStoppingConfig(patience=1)))
    assert callback.on_step_end(after(1, eval_loss=1.0)) is None
    assert callback.on_step_end(after(2)) is None


def test_a_figure_of_the_training_is_looked_at_after_every_step() -> None:
    callback = scene(EarlyStopping(EarlyStoppingConfig(metric="loss", patience=2)), evaluates=False)
    assert [bool(callback.on_step_end(after(step, loss=loss))) for step, loss in enumerate([1.0, 2.0, 2.0])] == [
        False,
        False,
        True,
    ]


def test_a_figure_that_never_comes_is_one_clear_error() -> None:
    with pytest.raises(MtError, match=r"holds no rows out: set data.eval"):
        scene(EarlyStopping(EarlyStoppingConfig()), evaluates=False)
    callback = scene(EarlyStopping(EarlyStoppingConfig(metric="eval_los")))
    assert callback.on_step_end(after(1)) is None
    with pytest.raises(
        MtError,
        match=r"waits for eval_los, which never comes. Did you mean 'eval_loss'\? There are: accuracy, eval_loss",
    ):
        callback.on_step_end(after(2, eval_loss=1.0))
    with pytest.raises(MtError, match="never comes"):
        scene(EarlyStopping(EarlyStoppingConfig(metric="accurracy"))).on_step_end(after(1))
    for clock in ("tokens_per_second", "seconds", "epoch"):
        with pytest.raises(MtError, match=f"{clock} cannot say whether a model is good"):
            scene(EarlyStopping(EarlyStoppingConfig(metric=clock)))


@pytest.mark.parametrize("make", [lambda: EarlyStopping(EarlyStoppingConfig(patience=1)), lambda: Best(BestConfig())])
def test_an_evaluation_that_is_not_due_is_no_figure_and_no_error(make: Any) -> None:
    callback = make()
    evaluations = [{"name": "mmlu", "every": 2}, {"name": "mmlu-pro", "every": 3}]
    for best in ("eval_mmlu_accuracy:max", "eval_mmlu_pro_f1:max"):
        config = {"checkpoint": {"best": best, "keep_best": 1}, "eval": {"every_steps": 1}, "evaluations": evaluations}
        context = CallbackContext(step=0, total_steps=99, output=None, config=config, evaluates=True)
        callback.on_run_start(context)
        look = callback.on_evaluate_end if isinstance(callback, Best) else callback.on_step_end
        figure = best.partition(":")[0]
        assert look(after(1, eval_loss=1.0)) is None
        look(after(2, **{"eval_loss": 1.0, figure: 0.5}))
        assert look(after(3, eval_loss=1.0)) is None
    with pytest.raises(MtError, match="eval_mmlu_pro_f1, which never comes"):
        look(after(6, eval_loss=1.0, eval_mmlu_pro_accuracy=0.5))


def test_evaluations_that_are_too_few_to_end_the_run_are_said() -> None:
    said = start(EarlyStopping(EarlyStoppingConfig(patience=3)), every=None).say
    assert said.startswith(
        "0 evaluations before the last step (eval.every_steps none) cannot end the run, which takes 4"
    )
    assert "3 evaluations" in start(EarlyStopping(EarlyStoppingConfig(patience=3)), every=25).say
    assert start(EarlyStopping(EarlyStoppingConfig(patience=3)), every=24) is None
    assert start(EarlyStopping(EarlyStoppingConfig(patience=3, metric="loss")), every=None) is None


def test_evaluations_after_epochs_are_counted_as_well() -> None:
    def say(step: int = 0, **train: float | None) -> str | None:
        config = {
            "checkpoint": {"best": "eval_loss:min"},
            "eval": {"every_steps": None, "every_epochs": 2},
            "train": {"steps": None, "epochs": None, **train},
        }
        context = CallbackContext(step=step, total_steps=99, output=None, config=config, evaluates=True)
        answer = EarlyStopping(EarlyStoppingConfig(patience=3)).on_run_start(context)
        return answer and answer.say

    assert say(epochs=9) is None, "after 2, 4, 6 and 8"
    assert say(epochs=8.5) is None
    assert say(steps=99) is None, "nobody knows how many epochs these are"
    few = say(epochs=8)
    assert few is not None
    assert few.startswith("3 evaluations before the last step (eval.every_epochs 2) cannot end the run, which takes 4")
    assert "2 evaluations" in str(say(epochs=9, step=55)), "five of the nine are over"
    assert "0 evaluations" in str(say()), "one epoch"


def test_an_evaluation_that_runs_at_every_second_alone_comes_half_as_often() -> None:
    def say(every: int) -> str | None:
        callback = EarlyStopping(EarlyStoppingConfig(metric="eval_squad_f1", patience=3))
        config = {"checkpoint": {"best": "eval_loss:min"}, "eval": {"every_steps": 12}}
        config |= {"evaluations": [{"name": "squad", "every": every}]}
        context = CallbackContext(step=0, total_steps=99, output=None, config=config, evaluates=True)
        answer = callback.on_run_start(context)
        return answer and answer.say

    assert say(1) is None
    assert say(2) is None, "at steps 24, 48, 72 and 96"
    said = say(3)
    assert said is not None
    assert said.startswith(
        "2 evaluations before the last step (eval.every_steps 12, the evaluation's every: 3) cannot end"
    )


@pytest.mark.parametrize("make", [lambda: EarlyStopping(EarlyStoppingConfig(patience=1)), lambda: Best(BestConfig())])
def test_another_figure_after_a_resume_is_not_compared_with_the_old_one(make: Any) -> None:
    old, new, same = scene(make()), make(), make()
    for event in ("on_evaluate_end", "on_step_end"):
        getattr(old, event, lambda context: None)(after(1, eval_loss=0.1))
    for each, best in ((new, "eval_token_accuracy:min"), (same, "eval_loss:min")):
        each.load_state_dict(old.state_dict())
        start(each, best)
    worse = [getattr(each, "on_evaluate_end", getattr(each, "on_step_end", None)) for each in (new, same)]
    answers = [ask(after(2, eval_loss=0.5, eval_token_accuracy=0.5)) for ask in worse]
    if isinstance(old, Best):
        assert [bool(answer) for answer in answers] == [True, False], "saved, and not"
    else:
        assert [bool(answer) for answer in answers] == [False, True], "goes on, and ends"


def test_a_run_that_it_ended_and_that_is_resumed_gets_its_patience_anew() -> None:
    old, new, raised = (
        scene(EarlyStopping(EarlyStoppingConfig(patience=2))),
        *(EarlyStopping(EarlyStoppingConfig(patience=patience)) for patience in (2, 4)),
    )
    assert stops(old, [1, 2, 2]) == 2
    for each in (new, raised):
        each.load_state_dict(old.state_dict())
        start(each)
    assert stops(new, [2, 2]) == 1, "as many evaluations as before, and compared with the best of all"
    assert stops(raised, [2, 2]) == 1, "two of four were waited before"


def test_a_better_model_is_saved_at_once() -> None:
    callback = scene(Best(BestConfig()))
    asked = [
        bool(callback.on_evaluate_end(after(step, eval_loss=v))) for step, v in enumerate([3.0, 2.0, 2.0, 2.5, 1.0])
    ]
    assert asked == [True, True, False, False, True]


def test_a_figure_that_no_checkpoint_has_cannot_choose_the_best_one() -> None:
    with pytest.raises(MtError, match=r"checkpoint\.best is loss:min; set --checkpoint\.best eval_loss:min"):
        scene(Best(BestConfig()), "loss:min")


def test_of_equal_evaluations_the_first_is_the_best_and_its_checkpoint_is_there_at_the_end(runs: Any) -> None:
    """At such a rate no weight changes."""
    run = runs.train(
        "run",
        steps=6,
        callbacks={"best": {}},
        optimizer={"lr": 1e-30},
        eval={"every_steps": 2},
        checkpoint={"every_steps": 2, "keep_last": 1},
    )
    assert find(run).name == "step-00000002"
    assert find(run).is_dir()


def test_a_run_that_learns_nothing_more_ends_early_with_its_best_checkpoint(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate is so high that the loss goes up after a while."""
    words = {"callbacks": {"early-stopping": {"patience": 2}, "best": {}}, "optimizer": {"lr": 1.0}}
    run = runs.train("run", steps=30, eval={"every_steps": 1}, checkpoint={"every_steps": 50}, **words)
    losses = [record["eval_loss"] for record in runs.records(run)]
    assert len(losses) < 30
    assert min(losses) == losses[-3], "two evaluations without a new best"
    assert find(run).name == f"step-{len(losses) - 2:08d}"
    assert "early-stopping: eval_loss was not better than" in capsys.readouterr().err


def test_a_best_that_is_asked_for_on_a_resume_knows_the_checkpoints_that_are_there(runs: Any) -> None:
    """At such a rate no weight changes: the first of equal ones is the best, and evaluations without a checkpoint do not count."""
    pace = {"eval": {"every_steps": 2}, "checkpoint": {"every_steps": 4}, "optimizer": {"lr": 1e-30}}
    run = runs.train("run", steps=6, **pace)
    train({"train": {"steps": 10}, "callbacks": ["best"]}, resume=run / "checkpoints" / "step-00000006")
    assert runs.state(run)["best"]["name"] == "step-00000004"
    assert find(run).name == "step-00000004"
