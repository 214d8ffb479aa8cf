"""The ranks that the others wait for.

A step takes as long on every rank, since all wait in its collectives. What differs is how long a rank computes between two of them, so
that is measured: the forward of a micro-batch from the first layer to the last block, which nobody waits in; at ZeRO 3, where weights
are gathered all along, each module that has weights by itself.

Beside their times, the norms of the ranks' own gradients may be compared, before they are added up: a rank far from the others
computes something else. Both travel in one collective a window.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isfinite
from statistics import median
from typing import Any

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, UsageError

from .ranks import device_of, gather_hosts, gather_rows, gathered_modules
from .repetition import Repetition
from .stopwatch import Stopwatch

GRADIENTS = "gradients unlike the others'"
FEWEST_RANKS = 4
"""Fewest ranks to compare: of fewer, a median absolute deviation says nothing. Of 4 one was named by chance in 10,000 windows."""


class StragglersConfig(MtConfig):
    """Definition of a straggler."""

    ratio: float = Field(
        1.1, gt=1, description="a rank is slow that computes more than so many times the median of all ranks"
    )
    windows: int = Field(
        3,
        gt=0,
        description="windows of log.every_steps steps in a row that a rank is slow before it is named, or is not before it has recovered",
    )
    gradient_deviations: float | None = Field(
        None,
        gt=0,
        description="also name a rank whose own gradient's norm is so many median absolute deviations from the median (6 is usual;"
        " from 4 ranks on)",
    )


class Stragglers:
    """Names ranks that are slow, or wait for their rows, and says when they have recovered. Every rank sees the figures of all."""

    def __init__(self, config: StragglersConfig) -> None:
        self._watches = {
            "computing": Watch(config.ratio, config.windows),
            "waiting for its rows": Watch(config.ratio, config.windows),
        }
        if config.gradient_deviations is not None:
            self._watches[GRADIENTS] = DeviationWatch(config.gradient_deviations, config.windows)
        self._squares: Any = None
        self._stopwatch: Stopwatch | None = None
        self._hosts: list[str] = []
        self._positions = self._steps = 0
        self._waited = 0.0
        self._began = time.perf_counter()

    def on_model_built(self, context: CallbackContext) -> None:
        """Stand around what is measured. Raises ``UsageError`` where nothing can be told apart."""
        if context.weights is None or context.weights.world == 1:
            return
        _, *blocks, _, _ = layers = [layer.module for layer in context.model.layers()]
        partitioned = context.config["parallel"]["zero_stage"] == 3
        if partitioned and context.config["train"]["compile"]:
            raise UsageError(
                "callback stragglers: with parallel.zero_stage=3 and train.compile weights are gathered inside of what is"
                " measured, where every rank waits for the slowest; leave out train.compile, or the callback"
            )
        if GRADIENTS in self._watches:
            self._watch_gradients(context)
        self._stopwatch = Stopwatch(device_of(context.model))
        if partitioned:
            for module in chain.from_iterable(map(gathered_modules, blocks)):
                module.register_forward_pre_hook(self._start)
                module.register_forward_hook(self._stop)
        else:
            layers[0].register_forward_pre_hook(self._start)
            layers[-2].register_forward_pre_hook(self._stop)

    def _watch_gradients(self, context: CallbackContext) -> None:
        """Add up squares as gradients come. Raises ``UsageError`` where ranks have gradients of different weights, or are too few."""
        import torch

        assert context.weights is not None, "there are ranks to compare"
        parallel = context.config["parallel"]
        for key in ("pipeline", "expert"):
            if parallel.get(key, 1) > 1:
                raise UsageError(
                    f"callback stragglers: gradient_deviations compares gradients of the same weights, and with"
                    f" parallel.{key}={parallel[key]} ranks have some each; leave one of the two out"
                )
        if context.weights.world < FEWEST_RANKS:
            raise UsageError(
                f"callback stragglers: gradient_deviations needs {FEWEST_RANKS} ranks or more to know what is usual, and this run has"
                f" {context.weights.world}; leave it out"
            )
        self._squares = torch.zeros((), dtype=torch.float64, device=device_of(context.model))
        for parameter in context.model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._add_squares)

    def _add_squares(self, gradient: Any) -> None:
        """Count what a backward gives a weight, before ranks add it up."""
        if not Repetition.is_running:
            self._squares += gradient.detach().float().square().sum()

    def on_run_start(self, context: CallbackContext) -> None:
        """Learn where each rank runs."""
        if self._stopwatch is not None and context.weights is not None:
            self._hosts = gather_hosts(context.weights.rank, context.weights.world, device_of(context.model))
            self._begin()

    def on_step_start(self, context: CallbackContext) -> None:
        """Begin to measure."""
        if self._stopwatch is not None:
            self._positions += sum(batch.input_ids.numel() for batch in context.batches)
            self._steps += 1
            self._stopwatch.listens = True

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """Leave evaluations out."""
        if self._stopwatch is not None:
            self._stopwatch.listens = False

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Compare the ranks at the end of a window."""
        if self._stopwatch is None or context.record is None or not self._steps:
            return None  # without a step: a resumed run ends one that the process before it has computed
        self._waited += context.record.data_wait_seconds
        if context.step % context.config["log"]["every_steps"]:
            return None
        said = self._compare(context)
        self._begin()
        return Control(say="; ".join(said)) if said else None

    def _begin(self) -> None:
        assert self._stopwatch is not None, "there are ranks to compare"
        self._stopwatch.reset()
        if self._squares is not None:
            self._squares.zero_()
        self._positions, self._steps, self._waited, self._began = 0, 0, 0.0, time.perf_counter()

    def _compare(self, context: CallbackContext) -> list[str]:
        """Return what to say of this window. Collective: all ranks get the same figures, and say the same."""
        import torch

        assert self._stopwatch is not None, "there are ranks to compare"
        assert context.weights is not None, "a run has weights"
        step_seconds = (time.perf_counter() - self._began) / self._steps
        # Of each position, since padded rows are of different lengths; a wait as a share of a step, on top of one.
        row = [self._stopwatch.seconds() / self._positions, self._waited / self._steps, step_seconds]
        if self._squares is not None:
            row.append(float(self._squares.sqrt()))
        device = device_of(context.model)
        here = torch.tensor(row, dtype=torch.float64, device=device)
        table = gather_rows(here, context.weights.rank, context.weights.world).tolist()
        step = median(each[2] for each in table)
        figures = {
            "computing": [each[0] for each in table],
            "waiting for its rows": [1 + each[1] / max(step, 1e-9) for each in table],
        }
        if self._squares is not None:
            figures[GRADIENTS] = [each[3] for each in table]
        return [
            self._describe(what, change, figures[what])
            for what, watch in self._watches.items()
            for change in watch.look(figures[what])
        ]

    def _describe(self, what: str, change: Change, values: Sequence[float]) -> str:
        who = f"rank {change.rank} on {self._hosts[change.rank]}"
        if not change.slow:
            return f"{who} has recovered from {what}"
        if what == GRADIENTS:
            return (
                f"{who} has gradients of {change.ratio:.3g} times the median norm of {len(values)} ranks, in"
                f" {self._watches[what].windows} windows in a row; it may compute wrongly: look at its rows, and have that machine tested"
            )
        much = (
            f"computes {change.ratio:.2f} times as long as the median of {len(values)} ranks"
            if what == "computing"
            else f"waits for its rows {change.ratio - 1:.0%} of a step longer than the others"
        )
        return f"{who} {much}, in {self._watches[what].windows} windows in a row; all wait for it"

    @property
    def _start(self) -> Any:
        assert self._stopwatch is not None, "there are ranks to compare"
        return partial(_call, self._stopwatch.start)

    @property
    def _stop(self) -> Any:
        assert self._stopwatch is not None, "there are ranks to compare"
        return partial(_call, self._stopwatch.stop)


def _call(function: Any, *arguments: object) -> None:
    """Call a function as a hook, whatever a hook is given, in steps that are computed for the first time."""
    if not Repetition.is_running:
        function()


@dataclass(frozen=True)
class Change:
    """A rank that has become slow, at so many times the median, or has recovered."""

    rank: int
    slow: bool
    ratio: float


@dataclass
class Watch:
    """Ranks above ``ratio`` times the median, in so many windows in a row; and those that no longer are."""

    ratio: float
    windows: int
    named: set[int] = field(default_factory=set)
    _counts: dict[int, int] = field(default_factory=dict)

    def look(self, values: Sequence[float]) -> list[Change]:
        """Take the figures of all ranks in one window; return what has changed."""
        middle = median([value for value in values if isfinite(value)] or values)
        odd = self.are_odd(values, middle)
        changes = []
        for rank, (value, slow) in enumerate(zip(values, odd, strict=True)):
            differs = slow != (rank in self.named)
            self._counts[rank] = self._counts.get(rank, 0) + 1 if differs else 0
            if self._counts[rank] == self.windows:
                self._counts[rank] = 0
                (self.named.add if slow else self.named.discard)(rank)
                changes.append(Change(rank, slow, value / max(middle, 1e-12)))
        return changes

    def are_odd(self, values: Sequence[float], middle: float) -> list[bool]:
        """Return of each rank whether it is one to be named; ``middle`` is the median."""
        return [value > self.ratio * middle for value in values]


class DeviationWatch(Watch):
    """Ranks more than ``ratio`` median absolute deviations from the median, on either side, or without a number where most have one."""

    def are_odd(self, values: Sequence[float], middle: float) -> list[bool]:
        """See ``Watch``. Deviations of rounding alone are none."""
        numbers = [value for value in values if isfinite(value)]
        if 2 * len(numbers) <= len(values):
            return [False] * len(values)
        least = max(median(abs(value - middle) for value in numbers), 1e-6 * abs(middle))
        return [not abs(value - middle) <= self.ratio * least for value in values]
