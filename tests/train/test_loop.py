"""The loop: what happens when, and what happens when a number is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from mt_core import Control
from mt_core.errors import NonFiniteError
from mt_core.protocols import StepRecord
from mt_train.data.loader import Position, WaitingEnded, Window
from mt_train.engine.step_result import StepResult
from mt_train.loop import Every, LoopHooks, Progress, train


class Stub:
    """An engine that only counts; its loss is not a number at step ``bad``."""

    def __init__(self, bad: int = 0) -> None:
        self.bad, self.steps, self.factors = bad, 0, []

    def set_rate(self, factor: float) -> float:
        self.factors.append(factor)
        return factor * 0.5

    def train_step(self, window: Any, stop: Callable[[], bool], before_update: Callable[[], object]) -> StepResult:
        before_update()
        self.steps += 1
        loss = math.nan if self.steps == self.bad else 1.0 / self.steps
        return StepResult(loss=loss, grad_norm=1.0, tokens=10, applied=self.steps != self.bad, stop=stop())


class Scene:
    """A loop with everything observed."""

    def __init__(self, stop_at: int = 0, **hooks: Any) -> None:
        self.cut_short = self.finished = False
        self.events: list[str] = []
        self.records: list[StepRecord] = []
        self.stop_at = stop_at
        self.hooks = LoopHooks(
            evaluate=self.evaluate,
            save=lambda progress, evaluation: self.events.append(f"save {progress.step}"),
            on_step_start=lambda progress, window: None,
            on_record=self.record,
            memory_gib=lambda: 1.5,
            **hooks,
        )

    def evaluate(self) -> dict[str, float] | None:
        if self.cut_short:
            return None
        self.events.append("evaluate")
        return {"eval_loss": 2.0}

    def record(self, record: StepRecord) -> Control:
        self.records.append(record)
        return Control(stop=record.step == self.stop_at)

    def run(
        self,
        engine: Stub,
        *,
        steps: int = 5,
        every: int | None = 2,
        start: int = 0,
        pending: StepRecord | None = None,
    ) -> Progress:
        def windows() -> Iterator[Window]:
            for number in range(start, 99):
                names = tuple(f"row-{number}-{i}" for i in range(12))
                yield Window([], names, Position(0, number + 1), 0, passes=(number + 1) / 4)

        progress = Progress(start, start * 10, Position(0, start), pending)
        self.finished = train(
            engine,
            windows(),
            lambda k: 1.0 / (k + 1),
            progress,
            self.hooks,
            total_steps=steps,
            eval_every=Every(every),
            save_every=Every(3),
        )
        return progress


def test_it_evaluates_and_saves_on_time_and_at_the_end() -> None:
    scene, engine = Scene(), Stub()
    progress = scene.run(engine)
    assert scene.events == ["evaluate", "save 3", "evaluate", "evaluate", "save 5"]
    assert (progress.step, progress.tokens, progress.position) == (5, 50, Position(0, 5))
    assert [record.step for record in scene.records] == [1, 2, 3, 4, 5]
    assert scene.records[1].as_dict()["eval_loss"] == 2.0
    assert "eval_loss" not in scene.records[0].as_dict()
    assert engine.factors == [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5], "the schedule sees the 0-based update"
    assert scene.records[0].lr == 0.5


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (Every(epochs=1), [3, 5, 8]),
        (Every(epochs=2), [5]),
        (Every(steps=4), [4, 8]),
        (Every(4, 1), [3, 4, 5, 8]),
        (Every(), []),
    ],
)
def test_epochs_are_counted_where_the_next_step_begins_one(every: Every, due: list[int]) -> None:
    """Epochs of 3, 2 and 3 steps: what is packed differs; a stream's blocks begin at row 0, too."""
    ends = [Position(0, 8), Position(0, 0, block=1, read=9), Position(1), Position(1, 8), Position(2)]
    ends += [Position(2, 8), Position(2, 16), Position(3)]
    found = [step for step, position in enumerate(ends, 1) if every.is_due(Progress(step, position=position))]
    assert found == due


def test_a_number_that_is_none_stops_the_run_and_names_step_and_rows() -> None:
    scene = Scene()
    with pytest.raises(NonFiniteError, match=r"step 3: loss nan .*row-2-0.* and 4 more\. .*--train\.clip-norm"):
        scene.run(Stub(bad=3))
    assert [record.step for record in scene.records] == [1, 2]
    assert scene.events == ["evaluate"], "nothing is saved"


def test_a_step_without_a_number_is_passed_over_as_often_as_allowed() -> None:
    said: list[str] = []
    scene = Scene(max_skips=1, on_skip=said.append)
    progress = scene.run(Stub(bad=3))
    assert (progress.step, progress.skipped, len(said)) == (5, 1, 1)
    assert "step 3: loss nan" in said[0]
    assert "row-2-0" in said[0]
    stub = Stub(bad=2)
    scene = Scene(max_skips=1, on_skip=lambda text: setattr(stub, "bad", 4))
    with pytest.raises(NonFiniteError, match=r"step 4: .* 1 were skipped before"):
        scene.run(stub)


def test_an_fp16_overflow_is_counted_and_passed_over() -> None:
    scene = Scene(skip_unapplied=True)
    assert scene.run(Stub(bad=3)).step == 5


def test_a_callback_can_end_the_run_which_is_then_saved() -> None:
    scene = Scene(stop_at=2)
    assert scene.run(Stub()).step == 2
    assert scene.events[-1] == "save 2"


def test_it_goes_on_from_where_it_was() -> None:
    scene, engine = Scene(), Stub()
    assert scene.run(engine, start=3).step == 5
    assert [record.tokens for record in scene.records] == [40, 50]
    assert engine.factors == [1 / 4, 1 / 5]


def test_a_wish_to_stop_is_saved_and_leaves_the_run_unfinished() -> None:
    scene = Scene(stop=lambda: len(scene.records) == 3)
    assert scene.run(Stub()).step == 4
    assert not scene.finished
    assert scene.events[-2:] == ["evaluate", "save 4"], "what was due at this step happens"


def test_a_wish_that_comes_with_the_last_step_finishes_the_run() -> None:
    scene = Scene(stop=lambda: len(scene.records) == 4)
    assert scene.run(Stub()).step == 5
    assert scene.finished


def test_an_evaluation_that_was_cut_short_is_made_first_by_the_resumed_run() -> None:
    whole, first, second = Scene(), Scene(), Scene()
    whole.run(Stub())
    first.cut_short = True
    progress = first.run(Stub())
    assert (first.finished, progress.step, first.events) == (False, 2, ["save 2"])
    assert [record.step for record in first.records] == [1], "the record waits for its evaluation"
    stub = Stub()
    stub.steps = 2
    second.run(stub, start=2, pending=progress.pending)
    clocks = {"tokens_per_second": 0, "data_wait_seconds": 0, "seconds": 0}
    figures = [record.as_dict() | clocks for record in whole.records]
    assert [record.as_dict() | clocks for record in first.records + second.records] == figures


def test_records_have_the_time_of_all_steps_and_the_passes_over_the_rows() -> None:
    scene = Scene()
    progress = scene.run(Stub(), every=None)
    steps = [10 / record.tokens_per_second for record in scene.records]
    assert [record.seconds for record in scene.records] == pytest.approx(list(accumulate(steps)), rel=1e-6)
    assert progress.seconds == scene.records[-1].seconds
    assert [record.epoch for record in scene.records] == [0.25, 0.5, 0.75, 1.0, 1.25]
    assert "epoch" not in replace(scene.records[0], epoch=None).as_dict(), "of a stream nobody knows it"


def test_the_figures_of_an_evaluation_that_was_cut_short_come_into_the_checkpoint_of_their_step() -> None:
    """Else the best checkpoint of the run is another one, and every resume from it evaluates anew."""
    saved: list[tuple[int, bool, dict[str, float]]] = []
    first, second = Scene(), Scene()
    first.cut_short = True
    pending = first.run(Stub(), steps=2).pending

    def save(progress: Progress, figures: Mapping[str, float]) -> None:
        saved.append((progress.step, progress.pending is not None, dict(figures)))

    second.hooks = replace(second.hooks, save=save)
    second.run(Stub(), start=2, steps=2, pending=pending)
    assert saved == [(2, False, {"eval_loss": 2.0})]
    assert second.finished


def test_what_is_asked_for_after_an_update_holds_for_that_step() -> None:
    def asked(progress: Progress, window: Window) -> Control:
        third = progress.step == 3
        return Control(evaluate=third, save=third, metrics={"own": progress.step})

    scene = Scene(on_update=asked)
    scene.run(Stub(), every=None)
    assert scene.events == ["evaluate", "save 3", "evaluate", "save 5"], "and at the end, as always"
    assert [record.metrics["own"] for record in scene.records] == [1, 2, 3, 4, 5]


def test_a_callback_that_hears_of_a_late_evaluation_may_ask_for_a_save() -> None:
    first = Scene()
    first.cut_short = True
    pending = first.run(Stub()).pending
    second = Scene(stop_at=2)
    second.run(Stub(), start=2, pending=pending)
    assert second.events == ["evaluate", "save 2"]


def test_a_run_that_a_callback_ended_says_so_in_its_last_save_and_trains_no_more() -> None:
    ends: list[tuple[int, bool]] = []
    scene = Scene(stop_at=2)
    scene.hooks = replace(scene.hooks, save=lambda progress, figures: ends.append((progress.step, progress.ended)))
    progress = scene.run(Stub(), every=1)
    assert (ends, progress.ended, scene.finished) == ([(2, True)], True, True)
    engine, again = Stub(), Progress(2, ended=True)
    assert train(
        engine, iter(()), lambda k: 1.0, again, scene.hooks, total_steps=5, eval_every=Every(1), save_every=Every(1)
    )
    assert (engine.steps, ends) == (0, [(2, True)]), "nothing is trained, evaluated or saved"


def test_an_end_that_a_signal_cut_short_is_not_the_end_before_its_evaluation_is_there() -> None:
    """A callback asks to stop after the update of step 2, and a signal ends the evaluation of that step."""
    asks = {"on_update": lambda progress, window: Control(stop=progress.step == 2)}
    scene = Scene(**asks)
    scene.cut_short = True
    progress = scene.run(Stub())
    assert (scene.finished, progress.ended, [record.step for record in scene.records]) == (False, True, [1])
    scene.cut_short, again = False, Progress(2, pending=progress.pending, ended=True)
    assert train(
        Stub(), iter(()), lambda k: 1.0, again, scene.hooks, total_steps=5, eval_every=Every(2), save_every=Every(3)
    )
    assert scene.records[-1].as_dict()["eval_loss"] == 2.0


def test_the_record_of_a_step_whose_evaluation_was_cut_short_is_kept_by_a_run_that_evaluates_no_more() -> None:
    record = StepRecord(2, 1.0, 0.1, 1.0, 20, 1.0, 1.0, 0.0)
    scene = Scene()
    scene.hooks = replace(scene.hooks, evaluate=None)
    scene.run(Stub(), start=2, steps=3, pending=record)
    assert [record.step for record in scene.records] == [2, 3]


@pytest.mark.parametrize("here", [True, False], ids=["on another rank", "on this rank"])
def test_a_wish_that_comes_while_rows_are_waited_for_saves_and_stops_before_the_step_on_all_ranks(here: bool) -> None:
    asked: list[bool] = []

    def together(ready: bool) -> bool:
        asked.append(ready)
        return len(asked) < 3

    def windows() -> Iterator[Window]:
        yield from (Window([], ("a",), Position(0, number), 0) for number in (1, 2))
        if not here:
            raise WaitingEnded
        yield Window([], ("a",), Position(0, 3), 0)

    scene, engine, progress = Scene(together=together), Stub(), Progress()
    finished = train(
        engine, windows(), lambda k: 1.0, progress, scene.hooks, total_steps=9, eval_every=Every(), save_every=Every()
    )
    assert (finished, engine.steps, progress.step, progress.position) == (False, 2, 2, Position(0, 2))
    assert (scene.events, asked) == (["save 2"], [True, True, here])


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    scene, progress = Scene(together=lambda ready: False), Progress()
    windows = iter([Window([], ("a",), Position(0, 1), 0)])
    assert not train(
        Stub(), windows, lambda k: 1.0, progress, scene.hooks, total_steps=9, eval_every=Every(), save_every=Every()
    )
    assert scene.events == []


def test_what_is_to_happen_before_an_update_happens_before_each_and_knows_the_steps_so_far() -> None:
    seen: list[tuple[int, int]] = []
    engine = Stub()
    scene = Scene(on_before_update=lambda progress, window: seen.append((progress.step, engine.steps)))
    scene.run(engine, steps=3)
    assert seen == [(0, 0), (1, 1), (2, 2)], "steps that were counted, and updates that were made"
