"""The training loop. Everything that it needs is passed in; it knows no kind of model, adapter or engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mt_core.data.loader import Position, Window
from mt_core.errors import NonFiniteError
from mt_core.protocols import Control, StepRecord

if TYPE_CHECKING:
    from mt_core.nn import Batch


class Result(Protocol):
    """What the engine says of one optimizer step."""

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


class Stepper(Protocol):
    """The part of an engine that the loop drives."""

    def set_rate(self, factor: float) -> float: ...

    def train_step(self, window: Sequence[Batch]) -> Result: ...


@dataclass
class Progress:
    """How far a run is: what a checkpoint stores beside tensors."""

    step: int = 0
    tokens: int = 0
    position: Position = field(default_factory=Position)


@dataclass(frozen=True, kw_only=True)
class Plugs:
    """What the loop calls besides the engine. ``save`` and ``evaluate`` are collective."""

    evaluate: Callable[[], Mapping[str, float]] | None
    save: Callable[[Progress], None] | None
    on_step_start: Callable[[Progress], object]
    on_record: Callable[[StepRecord], Control]
    memory_gib: Callable[[], float]
    skip_unapplied: bool = False


def train(
    engine: Stepper,
    windows: Iterator[Window],
    schedule: Callable[[int], float],
    progress: Progress,
    plugs: Plugs,
    *,
    total_steps: int,
    eval_every: int | None,
    save_every: int | None,
) -> Progress:
    """Train until ``total_steps``. Raises ``NonFiniteError`` on a loss or gradient that is not a number."""
    while progress.step < total_steps:
        began = time.perf_counter()
        window = next(windows)
        waited = time.perf_counter() - began
        plugs.on_step_start(progress)
        rate = engine.set_rate(schedule(progress.step))
        result = engine.train_step(window.batches)
        if not (result.finite and result.applied) and not plugs.skip_unapplied:
            raise NonFiniteError(describe_failure(result, progress.step + 1, window))
        progress.step += 1
        progress.tokens += result.tokens
        progress.position = window.after
        seconds = time.perf_counter() - began
        last = progress.step == total_steps
        evaluation: Mapping[str, float] = {}
        if plugs.evaluate is not None and (last or _due(progress.step, eval_every)):
            evaluation = plugs.evaluate()
        control = plugs.on_record(
            StepRecord(
                step=progress.step,
                loss=result.loss,
                lr=rate,
                grad_norm=result.grad_norm,
                tokens=progress.tokens,
                tokens_per_second=result.tokens / max(seconds, 1e-9),
                memory_gib=plugs.memory_gib(),
                data_wait_seconds=waited,
                metrics=result.metrics,
                evaluation=evaluation,
            )
        )
        if plugs.save is not None and (last or control.save or control.stop or _due(progress.step, save_every)):
            plugs.save(progress)
        if control.stop:
            break
    return progress


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def describe_failure(result: Result, step: int, window: Window) -> str:
    """What happened, to which rows, and what may help."""
    shown = ", ".join(window.row_ids[:8]) + (f" and {len(window.row_ids) - 8} more" if len(window.row_ids) > 8 else "")
    return (
        f"step {step}: loss {result.loss} and gradient norm {result.grad_norm} are not both finite. No parameter or moment"
        f" was changed. Rows of this step: {shown}. Look at these rows, lower the learning rate, or set --train.clip-norm."
    )
