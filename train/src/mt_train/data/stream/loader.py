"""The blocks of a stream as optimizer steps, the same global sequence of rows for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core.errors import DataError
from mt_core.model_protocols import Objective
from mt_train.data.epoch import EpochRows, Group
from mt_train.data.loader import Loader, Position, Window
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.blocks import Block, Blocks

if TYPE_CHECKING:
    from mt_core.nn import Batch


@dataclass(frozen=True)
class _StreamRow:
    """A row of the global sequence, the samples that its numbers mean, and where the next one begins."""

    group: Group
    samples: EncodedSamples
    after: Position


class StreamLoader(Loader):
    """Loader over the blocks of a stream, otherwise as ``Loader``."""

    def __init__(self, blocks: Blocks, objective: Objective, **options: Any) -> None:
        super().__init__(blocks.first.samples, objective, **options)
        self._blocks, self._options = blocks, options

    def steps_in(self, epochs: float) -> int:
        raise AssertionError("a stream has no length; a run without train.steps was refused")

    def has(self, position: Position) -> bool:
        """Nobody knows before it is read."""
        return True

    def windows(self, position: Position, stop: Callable[[], bool] = lambda: False) -> Iterator[Window]:
        """Optimizer steps from ``position`` on. A step crosses blocks, and never an epoch. Raises ``DataError`` for an epoch of none."""
        try:
            yield from self._windows(position, stop)
        finally:
            self._blocks.rest()

    def _windows(self, position: Position, stop: Callable[[], bool]) -> Iterator[Window]:
        while True:
            rows, at_start = self._rows_from(position, stop), (position.block, position.row) == (0, 0)
            while step := list(islice(rows, self.global_batch_size)):
                at_start, position = False, step[-1].after
                row_ids = tuple(dict.fromkeys(row.samples.row_ids[number] for row in step for number in row.group))
                batches = [self._join(part) for part in self._share(step)]
                yield Window(batches, row_ids, position, position.epoch)
            if at_start:
                raise DataError(
                    f"{self._blocks.name} gave nothing to train on in epoch {position.epoch}; it can be read only once, or all of its"
                    " rows were dropped. Set a smaller --train.steps, or give it more rows"
                )
            position = Position(position.epoch + 1)

    def _rows_from(self, position: Position, stop: Callable[[], bool]) -> Iterator[_StreamRow]:
        block = self._blocks.block(replace(position, row=0), stop)
        start = position.row
        while block is not None:
            self._blocks.prepare(block.end)
            self._blocks.count(block)
            rows = self._rows_of(block)
            for number, group in enumerate(rows.cut(start, len(rows)), start=start + 1):
                after = replace(block.begin, row=number) if number < len(rows) else block.end
                yield _StreamRow(group, block.samples, after)
            start, block = 0, self._blocks.block(block.end, stop)

    def _rows_of(self, block: Block) -> EpochRows:
        """The rows of a block, shuffled and packed as those of a whole epoch are, with a seed of its own."""
        seed = int(np.random.SeedSequence([self.seed, block.begin.block]).generate_state(1)[0])
        return Loader(block.samples, self.objective, **{**self._options, "seed": seed}).rows(block.begin.epoch)

    def _join(self, rows: Sequence[_StreamRow]) -> Batch:
        """A micro-batch of rows that may come from several blocks; without any, with the columns of the first block."""
        if not rows:
            return self._batch([])
        samples, groups = EncodedSamples(reader=self.samples.reader), []
        for row in rows:
            first = len(samples)
            for number in row.group:
                samples.add(row.samples[number])
            groups.append(tuple(range(first, len(samples))))
        return self.batch_of(samples, groups)
