"""A batch that is a hundred times too strong: the run goes back, passes over its rows, and ends where a clean one does."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from mt_core import ConfigError, MtError
from mt_core.nn import LossSums, TokenObjective
from mt_core.plugins.host import PluginHost
from mt_plugin_callbacks.spikes import SpikeRollback, SpikeRollbackConfig
from mt_train.engine.engine import Engine
from mt_train.plugins.resolve import resolve

STEPS, BAD = 60, 25
PLAIN = {"steps": STEPS, "micro_batch_size": 4, "clip_norm": None}


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``spoil(steps)``: in these steps loss and gradient are a hundred times what they should be."""

    def at(*bad: int) -> None:
        step, steps, loss = Engine.train_step, [0], TokenObjective.loss

        def counted(self: Engine, *arguments: Any) -> Any:
            steps[0] += 1
            return step(self, *arguments)

        def spoiled(self: Any, hidden: Any, head: Any, batch: Any) -> LossSums:
            sums = loss(self, hidden, head, batch)
            wrong = head.training and steps[0] in bad
            return replace(sums, loss_sum=sums.loss_sum * 100) if wrong else sums

        monkeypatch.setattr(Engine, "train_step", counted)
        monkeypatch.setattr(TokenObjective, "loss", spoiled)

    return at


def held_out(runs: Any, run: Path) -> float:
    return runs.records(run)[-1]["eval_loss"]


def test_the_run_goes_back_and_ends_within_one_percent_of_a_clean_one(
    runs: Any, spoil: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"train": PLAIN, "eval": {"every_steps": STEPS}, "model": {"dropout": 0.0}, "optimizer": {"lr": 0.01}}
    clean = held_out(runs, runs.train("clean", steps=STEPS, **words))
    with monkeypatch.context():
        spoil(BAD)
        without = held_out(runs, runs.train("without", steps=STEPS, **words))
    monkeypatch.undo()
    spoil(BAD)
    capsys.readouterr()
    run = runs.train("run", steps=STEPS, callbacks={"spike-rollback": {"every_steps": 5}}, **words)
    assert f"spike-rollback: step {BAD}: loss" in capsys.readouterr().err
    assert len(runs.records(run)) == STEPS
    assert abs(held_out(runs, run) - clean) <= 0.01 * clean
    assert abs(without - clean) > 0.01 * clean, "the spike does harm"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_weights_and_moments_are_those_of_the_kept_step_at_every_stage(runs: Any, spoil: Any, stage: int) -> None:
    """With a rate that does not change, steps after going back are those after the kept step, on other rows."""
    words = {
        "parallel": {"zero_stage": stage},
        "schedule": "constant",
        "model": {"dropout": 0.0},
        "eval": {"every_steps": None},
    }
    words["checkpoint"] = {"every_steps": 4, "keep_last": 9}
    clean = runs.train("clean", steps=4, **words)
    spoil(5)
    run = runs.train("run", steps=5, callbacks={"spike-rollback": {"every_steps": 4, "patience": 2}}, **words)
    before, after = runs.content(clean), runs.content(run)
    for name in ("model/model-00001.safetensors", "state/rank-0000.safetensors"):
        assert after[name] == before[name]


@pytest.mark.needs("mt-plugin-optim")
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "schedule-free-adamw"},
        {"name": "apollo", "rank": 4},
        {"name": "badam", "switch_steps": 1},
        {"name": "sgd"},
    ],
    ids=lambda each: each["name"],
)
def test_any_optimizer_goes_back_to_the_first_step(runs: Any, spoil: Any, optimizer: dict[str, Any]) -> None:
    """Its state may be the weights themselves, a length that the next is compared with, of other blocks by now, or nothing."""
    words = {"optimizer": optimizer, "schedule": "constant", "model": {"dropout": 0.0}, "eval": {"every_steps": None}}
    words["checkpoint"] = {"every_steps": None}
    clean = runs.train("clean", steps=1, **words)
    spoil(4)
    run = runs.train("run", steps=4, callbacks={"spike-rollback": {"patience": 2}}, **words)
    before, after = runs.content(clean), runs.content(run)
    for name in ("model/model-00001.safetensors", "state/rank-0000.safetensors"):
        assert after[name] == before[name]


def test_too_many_spikes_end_the_run(runs: Any, spoil: Any) -> None:
    spoil(4, 5)
    with pytest.raises(MtError, match=r"step 5: loss .* is spike number 2"):
        runs.train("run", steps=6, callbacks={"spike-rollback": {"patience": 2, "most": 1}})


@pytest.mark.usefixtures("kit_model")
def test_checkpoints_in_the_background_are_refused_on_paper() -> None:
    raw = {"model": "kit-tiny", "callbacks": ["spike-rollback"], "checkpoint": {"background": True}}
    with pytest.raises(ConfigError, match=r"checkpoint.background: spike-rollback .*Set --checkpoint.background false"):
        resolve(raw, PluginHost.discover())


class NoWeights:
    """A run without parameters, of which only the losses matter."""

    def slices(self) -> list[Any]:
        return []

    def states(self) -> list[Any]:
        return []

    def put(self, slices: list[Any]) -> None:
        assert slices == []


def spikes_of(losses: list[float], **options: Any) -> list[int]:
    """Return the steps after which a run with these losses goes back."""
    watcher = SpikeRollback(SpikeRollbackConfig(most=len(losses), **options))
    found = []
    for step, loss in enumerate(losses, start=1):
        context: Any = SimpleNamespace(step=step, record=SimpleNamespace(loss=loss), weights=NoWeights())
        if watcher.on_step_end(context) is not None:
            found.append(step)
    return found


@pytest.mark.parametrize(("mean", "spread"), [(-3.0, 0.3), (-0.02, 0.05), (0.0, 1e-9), (0.01, 0.05), (-1e4, 1.0)])
def test_losses_below_zero_are_no_spikes_and_one_far_above_them_is(mean: float, spread: float) -> None:
    drawn = random.Random(0)
    usual = [mean + drawn.uniform(-spread, spread) for _ in range(200)]
    assert spikes_of(usual) == []
    far = mean + 2 * max(abs(mean), 3 * spread)
    assert spikes_of([*usual, far, *usual]) == [201]


def test_losses_that_are_all_zero_say_of_no_other_that_it_is_a_spike() -> None:
    """As the first update of a policy has them, which is the one that wrote."""
    assert spikes_of([0.0] * 20 + [1e-9, -1e-9]) == []


def test_a_spike_whose_weights_a_resumed_run_begins_with_is_said_to_stay() -> None:
    """A signal before the evaluation of its step: the step ends after the resume, and no copy is older."""
    callback = SpikeRollback(SpikeRollbackConfig(patience=1))
    callback.load_state_dict({"losses": [1.0], "times": 0})
    weights = SimpleNamespace(
        slices=list, states=list, put=lambda slices: pytest.fail("there is nothing to go back to")
    )
    context: Any = SimpleNamespace(step=2, weights=weights, record=SimpleNamespace(loss=9.0))
    context.config = {"checkpoint": {"background": False}}
    callback.on_run_start(context)
    control = callback.on_step_end(context)
    assert control is not None
    assert "resume from a checkpoint before it" in str(control.say)
    assert callback.state_dict() == {"losses": [1.0], "times": 0}


def test_a_window_shorter_than_the_patience_sees_spikes_and_takes_the_median_of_its_own_losses() -> None:
    losses = [9.0] * 8 + [2.0] * 3 + [5.0]
    assert spikes_of(losses, window=3, patience=8) == [12]
    assert spikes_of(losses, window=3, patience=11) == [12]
    assert spikes_of(losses, window=3, patience=12) == []
    assert spikes_of(losses, window=11, patience=11) == [], "5 is no spike beside a median of 9"


@pytest.mark.parametrize("usual", [2.0, 0.0, -2.0])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_spike_and_hides_no_later_one(usual: float, loss: float) -> None:
    assert spikes_of([usual] * 20 + [loss]) == [21]
    assert spikes_of([loss] * 3 + [usual] * 20 + [loss]) == [24]


def test_losses_above_zero_are_judged_by_the_ratio_to_their_median_alone() -> None:
    drawn = random.Random(1)
    losses, want, kept = [math.exp(drawn.gauss(0, 0.6)) for _ in range(500)], [], []
    for step, loss in enumerate(losses, start=1):
        if len(kept) >= 8 and loss > 2.0 * median(kept[-32:]):
            want.append(step)
        else:
            kept.append(loss)
    assert len(want) > 20
    assert spikes_of(losses) == want
