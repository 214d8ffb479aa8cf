"""The ranks that the others wait for.

A step takes as long on every rank, since all wait in its collectives. What differs is how long a rank computes between two of them, so
that is measured: the forward of a micro-batch from the first layer to the last block, which nobody waits in; at ZeRO 3, where weights
are gathered all along, each module that has weights by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, UsageError

from .ranks import device_of, gather_hosts, gather_rows, gathered_modules


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


class Stragglers:
    """Names ranks that are slow, or wait for their rows, and says when they have recovered. Every rank sees the figures of all."""

    def __init__(self, config: StragglersConfig) -> None:
        self._watches = {
            "computing": Watch(config.ratio, config.windows),
            "waiting for its rows": Watch(config.ratio, config.windows),
        }
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
        self._stopwatch = Stopwatch(device_of(context.model))
        if partitioned:
            for module in chain.from_iterable(map(gathered_modules, blocks)):
                module.register_forward_pre_hook(self._start)
                module.register_forward_hook(self._stop)
        else:
            layers[0].register_forward_pre_hook(self._start)
            layers[-2].register_forward_pre_hook(self._stop)

    def on_run_start(self, context: CallbackContext) -> None:
        """Learn where each rank runs."""
        if self._stopwatch is not None and context.weights is not None:
            self._hosts = gather_hosts(context.weights.rank, context.weights.world, device_of(context.model))
            self._begin()

    def on_step_start(self, context: CallbackContext) -> None:
        """Begin to measure."""
        if self._stopwatch is not None:
            self._positions += sum(batch.input_ids.numel() for batch in context.batches)
            self._stopwatch.listens = True

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """Leave evaluations out."""
        if self._stopwatch is not None:
            self._stopwatch.listens = False

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Compare the ranks at the end of a window."""
        if self._stopwatch is None or context.record is None:
            return None
        self._waited += context.record.data_wait_seconds
        self._steps += 1
        if context.step % context.config["log"]["every_steps"]:
            return None
        said = self._compare(context)
        self._begin()
        return Control(say="; ".join(said)) if said else None

    def _begin(self) -> None:
        assert self._stopwatch is not None, "there are ranks to compare"
        self._stopwatch.reset()
        self._positions, self._steps, self._waited, self._began = 0, 0, 0.0, time.perf_counter()

    def _compare(self, context: CallbackContext) -> list[str]:
        """Return what to say of this window. Collective: all ranks get the same figures, and say the same."""
        import torch

        assert self._stopwatch is not None, "there are ranks to compare"
        assert context.weights is not None, "a run has weights"
        step_seconds = (time.perf_counter() - self._began) / self._steps
        # Of each position, since padded rows are of different lengths; a wait as a share of a step, on top of one.
        row = [self._stopwatch.seconds() / self._positions, self._waited / self._steps, step_seconds]
        device = device_of(context.model)
        here = torch.tensor(row, dtype=torch.float64, device=device)
        table = gather_rows(here, context.weights.rank, context.weights.world).tolist()
        step = median(each[2] for each in table)
        figures = {
            "computing": [each[0] for each in table],
            "waiting for its rows": [1 + each[1] / max(step, 1e-9) for each in table],
        }
        return [
            self._describe(what, change, figures[what])
            for what, watch in self._watches.items()
            for change in watch.look(figures[what])
        ]

    def _describe(self, what: str, change: Change, values: Sequence[float]) -> str:
        who = f"rank {change.rank} on {self._hosts[change.rank]}"
        if not change.slow:
            return f"{who} has recovered from {what}"
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
    """Call a function as a hook, whatever a hook is given."""
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
        middle = median(values)
        changes = []
        for rank, value in enumerate(values):
            slow = value > self.ratio * middle
            differs = slow != (rank in self.named)
            self._counts[rank] = self._counts.get(rank, 0) + 1 if differs else 0
            if self._counts[rank] == self.windows:
                self._counts[rank] = 0
                (self.named.add if slow else self.named.discard)(rank)
                changes.append(Change(rank, slow, value / max(middle, 1e-12)))
        return changes


class Stopwatch:
    """Adds up spans, on a GPU by events of its stream, which nothing waits for until the sum is asked for."""

    def __init__(self, device: Any) -> None:
        import torch

        self._event = partial(torch.cuda.Event, enable_timing=True) if device.type == "cuda" else None
        self._spans: list[tuple[Any, Any]] = []
        self._open: Any = None
        self._sum = 0.0
        self.listens = False

    def start(self) -> None:
        """Begin a span; one that was begun and not ended is forgotten."""
        if self.listens:
            self._open = self._now()

    def stop(self) -> None:
        """End the span that was begun, if one was."""
        if not self.listens or self._open is None:
            return
        ended = self._now()
        if self._event is None:
            self._sum += ended - self._open
        else:
            self._spans.append((self._open, ended))
        self._open = None

    def seconds(self) -> float:
        """Return the sum of all spans."""
        if self._spans:
            self._spans[-1][1].synchronize()
        milliseconds: float = sum(begun.elapsed_time(ended) for begun, ended in self._spans)
        return self._sum + milliseconds / 1000

    def reset(self) -> None:
        """Begin anew."""
        self._spans, self._open, self._sum = [], None, 0.0

    def _now(self) -> Any:
        if self._event is None:
            return time.perf_counter()
        event = self._event()
        event.record()
        return event
