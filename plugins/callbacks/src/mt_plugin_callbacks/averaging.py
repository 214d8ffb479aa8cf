"""Averages of the trained weights, beside them: exponential (EMA) and plain (SWA).

Each rank averages the fp32 slices that it holds anyway, so the memory is that of one more copy of the weights, divided as
ZeRO divides the optimizer state. Checkpoints have the whole averages in ``callbacks/NAME/``, as safetensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import CallbackContext, CheckpointError, Control, MtConfig, TrainedWeights

if TYPE_CHECKING:
    from torch import Tensor


class EmaConfig(MtConfig):
    """Pace at which the average follows."""

    decay: float = Field(0.999, gt=0, lt=1, description="share of the old average that stays in each update")
    warmup: bool = Field(
        True, description="at first less stays: (1 + n) / (10 + n) after n updates, as far as that is smaller"
    )
    every_steps: int = Field(1, gt=0, description="optimizer steps between updates of the average")
    evaluate: bool = Field(
        True, description="evaluate and write samples with the average; checkpoints have both in any case"
    )


class SwaConfig(MtConfig):
    """Updates that the plain average is taken over."""

    start: float = Field(0.75, ge=0, lt=1, description="share of the run's steps before the first averaged weights")
    every_steps: int = Field(10, gt=0, description="optimizer steps between weights that are averaged")
    evaluate: bool = Field(True, description="evaluate and write samples with the average, as soon as there is one")


class Average:
    """Base of both averages.

    ``share(n)`` is the part of the new weights in update n (0-based); ``steps(context)`` are the steps of the run with an update.
    Weights from before step ``first(context)`` are left out: a resumed run may be longer than it was.
    """

    def __init__(
        self,
        *,
        share: Callable[[int], float],
        steps: Callable[[CallbackContext], range],
        evaluate: bool,
        first: Callable[[CallbackContext], int] = lambda context: 0,
    ) -> None:
        self._share, self._steps, self._evaluate, self._first = share, steps, evaluate, first
        self._weights: TrainedWeights | None = None
        self._slices: list[tuple[str, int, Tensor]] = []
        self._updates = 0
        self._since: int | None = None

    def on_model_built(self, context: CallbackContext) -> None:
        """Remember where the weights are."""
        self._weights = context.weights

    def on_run_start(self, context: CallbackContext) -> Control | None:
        """Drop an average that began too early for the length that a resumed run has now: no evaluation and no checkpoint is of it.

        Say where the run is too short for an average.
        """
        if self._since is not None and self._since < self._first(context):
            self._updates, self._slices, self._since = 0, [], None
        steps = self._steps(context)
        to_come = steps[bisect_right(steps, context.step) :]
        if self._updates + len(to_come) > 1 or context.step >= context.total_steps:
            return None
        if self._updates or to_come:
            only = self._since if self._updates else to_come[0]
            told = f"the average is that of one step alone, {only} of {context.total_steps}"
        else:
            told = f"no step of the {context.total_steps} is averaged, and there will be no average"
        return Control(say=f"{told}: lower every_steps={steps.step}, or train for more steps")

    def on_after_optimizer_step(self, context: CallbackContext) -> None:
        """Take the new weights into the average."""
        if self._weights is None or context.step not in self._steps(context):
            return
        if not self._updates:
            self._since = context.step
        share = self._share(self._updates)
        self._updates += 1
        if not self._slices:
            self._slices = [(name, start, values.clone()) for name, start, values in self._weights.slices()]
            return
        for (_, _, average), (_, _, values) in zip(self._slices, self._weights.slices(), strict=True):
            average.lerp_(values, share)

    def around_evaluation(self, context: CallbackContext) -> AbstractContextManager[None]:
        """Evaluate with the average."""
        if self._weights is None or not self._slices or not self._evaluate:
            return nullcontext()
        return self._weights.substitute(self._slices)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The whole averages, one at a time."""
        return self._weights.gather(self._slices) if self._weights is not None and self._updates else iter(())

    def load_tensors(self, read: Mapping[str, Callable[[], Tensor]]) -> None:
        """Go on from these averages. Raises ``CheckpointError`` where one is missing."""
        if self._weights is None or not read:
            return
        live = [(name, start, values) for name, start, values in self._weights.slices()]
        if missing := sorted({name for name, _, _ in live} - read.keys()):
            raise CheckpointError(
                f"the checkpoint lacks averages of {', '.join(missing)}; other weights were trained then"
            )
        self._slices = [
            (name, start, read[name]().reshape(-1)[start : start + len(values)].to(values.device, copy=True))
            for name, start, values in live
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return how many updates there were, and the step of the first one."""
        return {"updates": self._updates, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self._updates, self._since = state["updates"], state.get("since")


def build_ema(config: EmaConfig) -> Average:
    """The exponential average; its first value is the weights after the first update."""

    def share(updates: int) -> float:
        early = (1 + updates) / (10 + updates) if config.warmup else 1.0
        return 1.0 - min(config.decay, early)

    def steps(context: CallbackContext) -> range:
        return range(config.every_steps, context.total_steps + 1, config.every_steps)

    return Average(share=share, steps=steps, evaluate=config.evaluate)


def build_swa(config: SwaConfig) -> Average:
    """The plain average of the weights at regular steps of the last part of the run."""

    def first(context: CallbackContext) -> int:
        return int(config.start * context.total_steps)

    def steps(context: CallbackContext) -> range:
        return range(first(context) or config.every_steps, context.total_steps + 1, config.every_steps)

    return Average(share=lambda updates: 1.0 / (updates + 1), steps=steps, evaluate=config.evaluate, first=first)
