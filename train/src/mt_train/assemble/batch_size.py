"""``train.micro_batch_size: auto``: how many rows at a time the memory holds, tried on the run's own longest rows.

The engine that tries is thrown away, and the run begins as one does that was given the number: no weight, moment or random
state can be another. Each rank tries by itself, since one that is out of memory would leave the others waiting.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice

import numpy as np

from mt_core.errors import UsageError
from mt_core.nn import Batch
from mt_core.tracking.logs import notice
from mt_train.assemble.data import RunData, make_loader, with_measures
from mt_train.assemble.parts import Parts
from mt_train.config.sections import TrainConfig
from mt_train.data.epoch import Group
from mt_train.data.loader import Loader, make_batch, row_length
from mt_train.engine.engine import Engine
from mt_train.engine.memory_probe import LocalCollectives, fits, release_memory, reserve_memory
from mt_train.engine.plan import Plan, make_plan
from mt_train.engine.processes import Process, smallest
from mt_train.engine.random_state import preserve_random_state

ROWS_SEEN = 1000
"""Packed rows among which those with most media are looked for."""
SCALE_STEPS = 40
"""Most steps until fp16's loss scale lets one pass, whose moments then take their memory."""


def with_batch_size(
    parts: Parts, data: RunData, plan: Plan, process: Process, build: Callable[..., Engine]
) -> tuple[Parts, Plan]:
    """The run and its plan with the largest size that fits on every rank in place of ``auto``, which is said. Collective.

    Sizes are the divisors of the rows that a rank has of a step, so the step keeps its rows. ``build(parts, plan=plan)``
    makes the engine that tries. Raises ``UsageError`` when not even one row fits.
    """
    config = parts.config
    if config.train.micro_batch_size != "auto":
        return parts, plan
    sizes = _divisors(plan.global_batch_size // plan.data_ranks)
    rows = LongestRows(make_loader(config, data, plan, process), full_length=data.stream is not None)
    with preserve_random_state(), reserve_memory(process):
        largest = _largest(partial(build, parts, plan=plan), rows, sizes, process)
    release_memory(process)  # an engine holds itself, and must be gone before the run's own is built
    if not (rows_at_a_time := smallest(largest)):
        raise UsageError(
            f"train.micro_batch_size=auto: not even one row of {config.train.sequence_len} tokens fits into memory. Set"
            " --train.activation-checkpointing true, a smaller --train.sequence-len, or a higher --parallel.zero-stage"
        )
    config = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_size": rows_at_a_time})})
    with_measures(config, data)
    plan = make_plan(config, world=plan.world, device=plan.device, offers=parts.offers.values())
    if process.is_main:
        more = next((f" ({size} do not fit)" for size in sizes if size > rows_at_a_time), "")
        notice(f"train.micro_batch_size=auto: {rows_at_a_time} rows at a time{more}, {plan.micro_batches} times a step")
    return replace(parts, config=config), plan


def found_sizes(asked: TrainConfig, used: TrainConfig) -> dict[str, int]:
    """Return what was found for a run rather than given, by its key."""
    return {} if asked.micro_batch_size != "auto" else {"train.micro_batch_size": used.rows_at_a_time}


@dataclass(frozen=True)
class LongestRows:
    """The longest rows of a run, which need the most memory, or those with most media; of a stream those of its first block, at full
    length.
    """

    loader: Loader
    full_length: bool

    def batches(self, size: int, count: int) -> list[Batch]:
        """Return batches of so many rows, twice where a step has several micro-batches: gradients are then kept meanwhile."""
        samples, loader = self.loader.samples, self.loader
        longest = int(np.argmax(samples.lengths))
        groups: list[Group] = [(int(number),) for number in np.argsort(samples.lengths)[::-1]]
        if loader.packing:
            groups = list(loader.rows(0).cut(0, max(size, ROWS_SEEN)))
        if (features := samples.media_features).any():  # encoders need memory as well: rows with most of both
            groups.sort(key=lambda group: -int(features[list(group)].sum()))
        groups = list(islice(cycle(groups[:size]), size))
        length = loader.sequence_len if self.full_length else row_length(loader, samples, [*groups, (longest,)])
        batch = make_batch(samples, loader.objective, groups, length, loader.part, reads_media=loader.reads_media)
        return [batch] * min(2, count)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _largest(build: Callable[[], Engine], rows: LongestRows, sizes: list[int], process: Process) -> int:
    """The largest size that this rank can compute, 0 for none."""
    engine, largest = build(), 0
    if not fits(partial(_first_step, engine, rows.batches(1, sizes[-1]))):
        return largest
    with LocalCollectives() if process.world > 1 else contextlib.nullcontext():  # type: ignore[no-untyped-call]
        for size in sizes:  # from below: an engine cannot be trusted after a failure in the middle of a layer
            if not fits(partial(engine.train_step, rows.batches(size, sizes[-1] // size))):
                break
            largest = size
            release_memory(process)
    engine.close()
    return largest


def _first_step(engine: Engine, batches: list[Batch]) -> None:
    """All ranks together, so that moments, buffers and connections are there when sizes are tried."""
    for _ in range(SCALE_STEPS):
        if engine.train_step(batches).applied:
            return
