"""The training loop. Everything that it needs is passed in; it knows no kind of model, adapter or engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mt_core.errors import NonFiniteError
from mt_core.events import Control
from mt_core.protocols import StepRecord
from mt_train.data.loader import Position, WaitingEnded, Window

if TYPE_CHECKING:
    from mt_core.nn import Batch


class Result(Protocol):
    """Result of one optimizer step, from the engine."""

    @property
    def loss(self) -> float: ...

    @property
    def grad_norm(self) -> float: ...

    @property
    def tokens(self) -> int: ...

    @property
    def applied(self) -> bool: ...

    @property
    def finite(self) -> bool: ...

    @property
    def metrics(self) -> Mapping[str, float]: ...

    @property
    def stop(self) -> bool: ...

    @property
    def save(self) -> bool: ...


class Stepper(Protocol):
    """The part of an engine that the loop drives."""

    def set_rate(self, factor: float) -> float: ...

    def train_step(
        self, window: Sequence[Batch], stop: Callable[[], float], before_update: Callable[[], object]
    ) -> Result: ...


@dataclass
class Progress:
    """Progress of a run: what a checkpoint stores beside tensors.

    ``pending`` is the record of the last step when its evaluation was cut short: a resumed run evaluates first. ``ended``
    says that a callback ended the run with this step: without it a resumed run would train on. ``evaluated`` counts evaluations.
    ``seconds`` is the time of all steps, without what comes between them.
    """

    step: int = 0
    tokens: int = 0
    position: Position = field(default_factory=Position)
    pending: StepRecord | None = None
    skipped: int = 0
    ended: bool = False
    evaluated: int = 0
    seconds: float = 0.0


class SaveInterval(Protocol):
    """Interval between saves."""

    def is_due(self, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class Every:
    """Interval: after so many optimizer steps, or so many passes over the rows."""

    steps: int | None = None
    epochs: int | None = None

    def is_due(self, progress: Progress) -> bool:
        """Return whether it is, after the last step of ``progress``."""
        if self.steps is not None and progress.step % self.steps == 0:
            return True
        at = progress.position
        return self.epochs is not None and at == Position(at.epoch) and at.epoch % self.epochs == 0


@dataclass(frozen=True, kw_only=True)
class LoopHooks:
    """Functions that the loop calls beside the engine's. ``save`` and ``evaluate`` are collective.

    ``stop`` is this rank's wish to end early (1), or to save and go on (``checkpoint.request.SAVE``). ``together`` tells each
    whether all have the rows of the next step: where rows are waited for, only some may have got them when a wish to end
    comes. ``evaluate`` gives ``None`` when one cut it short.
    ``skip_unapplied`` passes over every step that was not applied, as fp16's loss scaling needs; ``max_skips`` is for steps
    without a number. ``on_before_update`` is called once a step has all of its gradients, and ``on_applied`` gets the number of
    each step that changed the weights. What ``on_update`` asks for holds for this step. ``on_record`` comes after the
    evaluation, so it can ask for none. ``counts_tokens`` is for its records.
    """

    evaluate: Callable[[], Mapping[str, float] | None] | None
    save: Callable[[Progress, Mapping[str, float]], None] | None
    on_step_start: Callable[[Progress, Window], object]
    on_record: Callable[[StepRecord], Control]
    memory_gib: Callable[[], float]
    on_before_update: Callable[[Progress, Window], object] = lambda progress, window: None
    on_applied: Callable[[int], object] = lambda step: None
    on_update: Callable[[Progress, Window], Control] = lambda progress, window: Control()
    stop: Callable[[], float] = lambda: False
    together: Callable[[bool], bool] = bool
    skip_unapplied: bool = False
    max_skips: int = 0
    on_skip: Callable[[str], None] = lambda text: None
    counts_tokens: bool = True


def train(
    engine: Stepper,
    windows: Iterator[Window],
    schedule: Callable[[int], float],
    progress: Progress,
    hooks: LoopHooks,
    *,
    total_steps: int,
    eval_every: Every,
    save_every: SaveInterval,
) -> bool:
    """Train until ``total_steps``, or until a callback says that it is enough; false when a wish to stop came first.

    ``progress`` counts along. Raises ``NonFiniteError`` on a loss or gradient that is not a number.
    """
    if progress.pending is not None:
        evaluation = hooks.evaluate() if hooks.evaluate is not None else {}
        if evaluation is None:
            return False
        progress.evaluated += hooks.evaluate is not None
        pending, progress.pending = progress.pending, None
        control = hooks.on_record(replace(pending, evaluation=evaluation))
        progress.ended |= control.stop
        if hooks.save is not None and (evaluation or control.stop or control.save):  # the checkpoint has no figures yet
            hooks.save(progress, evaluation)
    while progress.step < total_steps and not progress.ended:
        began = time.perf_counter()
        window = _next(windows, hooks)
        if window is None:
            if hooks.save is not None and progress.step:
                hooks.save(progress, {})
            return False
        record, wish, control = _step(engine, window, schedule, progress, hooks, began=began)
        last = progress.step == total_steps
        evaluation = {}
        if hooks.evaluate is not None and (last or control.evaluate or eval_every.is_due(progress)):
            evaluation = hooks.evaluate()
            progress.evaluated += evaluation is not None
        if evaluation is None:
            progress.pending = record
        else:
            control |= hooks.on_record(replace(record, evaluation=evaluation))
        progress.ended = control.stop
        wish = wish or evaluation is None
        if hooks.save is not None and (last or wish or control.stop or control.save or save_every.is_due(progress)):
            hooks.save(progress, evaluation or {})
        if wish:
            return evaluation is not None and (last or control.stop)
    return True


def _next(windows: Iterator[Window], hooks: LoopHooks) -> Window | None:
    """The rows of the next step; ``None`` on all ranks where one has waited for them until it was to stop."""
    try:
        window = next(windows)
    except WaitingEnded:
        hooks.together(False)
        return None
    return window if hooks.together(True) else None


def _step(
    engine: Stepper,
    window: Window,
    schedule: Callable[[int], float],
    progress: Progress,
    hooks: LoopHooks,
    *,
    began: float,
) -> tuple[StepRecord, bool, Control]:
    """One optimizer step, counted: its record, whether some rank wants to stop, and what callbacks ask for.

    ``began`` is when its rows were asked for.
    """
    waited = time.perf_counter() - began
    hooks.on_step_start(progress, window)
    rate = engine.set_rate(schedule(progress.step))
    result = engine.train_step(window.batches, hooks.stop, partial(hooks.on_before_update, progress, window))
    if not (result.finite and result.applied) and not hooks.skip_unapplied:
        failure = describe_failure(result, progress.step + 1, window)
        if progress.skipped >= hooks.max_skips:
            raise NonFiniteError(
                failure if not hooks.max_skips else f"{failure} {hooks.max_skips} were skipped before."
            )
        progress.skipped += 1
        hooks.on_skip(failure)
    progress.step += 1
    progress.tokens += result.tokens
    if result.applied:
        hooks.on_applied(progress.step)
    asked = hooks.on_update(progress, window)
    progress.position = window.after
    seconds = max(time.perf_counter() - began, 1e-9)
    progress.seconds += seconds
    record = StepRecord(
        step=progress.step,
        loss=result.loss,
        lr=rate,
        grad_norm=result.grad_norm,
        tokens=progress.tokens,
        tokens_per_second=result.tokens / seconds,
        memory_gib=hooks.memory_gib(),
        data_wait_seconds=waited,
        metrics={**result.metrics, **window.figures, **asked.metrics},
        counts_tokens=hooks.counts_tokens,
        epoch=window.passes,
        seconds=progress.seconds,
    )
    return record, result.stop, asked | Control(save=result.save)


def describe_failure(result: Result, step: int, window: Window) -> str:
    """Describe what happened, to which rows, and what may help."""
    shown = ", ".join(window.row_ids[:8]) + (f" and {len(window.row_ids) - 8} more" if len(window.row_ids) > 8 else "")
    return (
        f"step {step}: loss {result.loss} and gradient norm {result.grad_norm} are not both finite. No parameter or moment"
        f" was changed. Rows of this step: {shown}. Look at these rows, lower the learning rate, or set --train.clip-norm."
    )
