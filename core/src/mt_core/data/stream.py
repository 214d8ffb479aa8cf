"""Rows without random access: where a stream is read, its rows in encoded blocks, and these as optimizer steps.

A block is what ``data.shuffle_buffer`` holds: so many rows, read in the order of the source, shuffled and packed among
themselves. Everything about a step then follows from seed, epoch, number of the block and row in it, on any number of ranks,
and a position in the middle of a block is resumed from the block's begin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mt_core.data.encoded import EncodedSamples
from mt_core.data.encoding import Rules, encode, refuse_bad_rows
from mt_core.data.epoch import EpochRows, Group
from mt_core.data.loader import Loader, Position, Window, make_batch
from mt_core.data.report import DataReport
from mt_core.errors import DataError, first_line
from mt_core.protocols import Objective, Row, Stream

if TYPE_CHECKING:
    from mt_core.nn import Batch

BARREN_ROWS = 100_000
"""Rows of a stream one after another without anything to train on, after which nobody waits any longer."""


class RowsInMemory:
    """Rows that were read from a stream, by index; a bad one is raised when it is asked for."""

    def __init__(self, rows: Sequence[Row | DataError]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """The row, as it came. Raises the ``DataError`` that stands for a bad one."""
        row = self._rows[index]
        if isinstance(row, DataError):
            raise row
        return row


class StreamReader:
    """A stream, and how many rows of which epoch were read. ``say`` is told when rows have to be skipped."""

    def __init__(
        self, source: Stream, name: str, *, seed: int, most: int | None = None, say: Callable[[str], None]
    ) -> None:
        self.name, self.read = name, 0
        self._source, self._seed, self._most, self._say = source, seed, most, say
        self._epoch = -1
        self._rows: Iterator[Row | DataError] = iter(())

    def go_to(self, place: Position) -> None:
        """Stand before the row of this place: by going on, by the source's own state, or else by skipping rows."""
        if place.epoch == self._epoch and place.read == self.read:
            return
        if place.state is not None:
            self._source.load_state_dict(dict(place.state))
            self._open(place.epoch, place.read)
        elif place.epoch != self._epoch or place.read < self.read:
            self._open(place.epoch, 0)
        self._skip(place.read - self.read)

    def take(self, count: int) -> list[Row | DataError]:
        """The next rows; fewer at the end of the epoch."""
        left = count if self._most is None else min(count, self._most - self.read)
        rows: list[Row | DataError] = list(islice(self._rows, left))
        self.read += len(rows)
        return rows

    def state(self) -> dict[str, Any] | None:
        """The source's state as JSON gives it back; ``None`` where it keeps none. Raises ``DataError`` for any other."""
        state = self._source.state_dict()
        if not state:
            return None
        try:
            kept: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
            problem = "" if kept == state else "JSON would give it back changed"
        except (TypeError, ValueError) as error:
            problem = first_line(error)
        if problem:
            raise DataError(
                f"the state of {self.name} cannot be kept in a checkpoint: {problem}. Its state_dict() has to hold dicts with text as"
                " keys, lists, text, finite numbers, true, false and None only"
            )
        return kept

    def _open(self, epoch: int, read: int) -> None:
        self._rows, self._epoch, self.read = iter(self._source.rows(epoch, self._seed)), epoch, read

    def _skip(self, count: int) -> None:
        if not count:
            return
        self._say(f"skipping {count:,} rows of {self.name}, which has no state to go on from")
        if (found := sum(1 for _ in islice(self._rows, count))) < count:
            raise DataError(
                f"{self.name} ended after {self.read + found:,} rows, and the run had read {self.read + count:,} of them. Give it the"
                " rows that it had, or start a new run"
            )
        self.read += count


@dataclass(frozen=True)
class Block:
    """Rows that were read together, encoded. ``begin`` is where they begin, ``end`` where the next block does."""

    begin: Position
    end: Position
    samples: EncodedSamples


class Blocks:
    """The blocks of a stream, read as they are needed. ``check`` may refuse the samples of one.

    The first ``held_out`` rows of the stream are not in any of them, whatever the epoch. Raises ``DataError`` for a stream
    without rows, and where no row would be left.
    """

    def __init__(
        self,
        reader: StreamReader,
        objective: Objective,
        rules: Rules,
        *,
        size: int,
        held_out: int = 0,
        check: Callable[[EncodedSamples], None] = lambda samples: None,
    ) -> None:
        self._reader, self._objective, self._rules, self._size, self._check = reader, objective, rules, size, check
        self._bad, self._barren = DataReport(), 0
        reader.go_to(Position())
        self._held_rows = reader.take(held_out)
        self._held_ids = self._ids(held_out)
        self._latest = self.first = self._first()

    @property
    def name(self) -> str:
        """What the stream is called in messages."""
        return self._reader.name

    def held_out(self) -> EncodedSamples:
        """The rows at the head of the stream that are not trained on."""
        rows = self._held_rows
        return encode(RowsInMemory(rows), range(len(rows)), self._objective, self._rules)

    def block(self, begin: Position) -> Block | None:
        """The block that begins there; ``None`` at the end of the epoch. Raises ``DataError`` for a bad row."""
        for known in (self.first, self._latest):
            if begin == known.begin:
                return known
        self._reader.go_to(begin)
        block = self._read(begin)
        if block is not None:
            self._latest = block
        return block

    def _first(self) -> Block:
        block = self._read(Position())
        if block is not None:
            return block
        if self._held_rows:
            raise DataError(
                f"data.eval={len(self._held_rows)} holds out all rows of {self.name} and leaves none to train on; set a smaller"
                " data.eval, or none"
            )
        raise DataError(f"{self.name} has no rows; look at its options (--dataset.…), or choose another --dataset")

    def _ids(self, wanted: int) -> frozenset[str]:
        rows = [row for row in self._held_rows if not isinstance(row, DataError)]
        found = frozenset(str(row["id"]) for row in rows)
        if len(found) < len(rows):
            raise DataError(
                f"the first {wanted:,} rows of {self.name} have only {len(found):,} ids, so that data.eval={wanted} cannot tell them from"
                " others; give each row an id of its own, or set data.eval to a path or none"
            )
        return found

    def _read(self, begin: Position) -> Block | None:
        """Rows until there is something to train on, or the epoch ends."""
        if begin.block == 0:
            self._bad = DataReport()
        reports: list[DataReport] = []
        while True:
            rows = self._reader.take(self._size)
            own = [row for row in rows if isinstance(row, DataError) or str(row["id"]) not in self._held_ids]
            samples = encode(RowsInMemory(own), range(len(own)), self._objective, self._rules)
            reports.append(samples.report)
            if len(samples) or len(rows) < self._size:
                break
            self._refuse_barren(len(rows), DataReport.total(reports))
        samples.report = DataReport.total(reports)
        if not len(samples) and not samples.report.rows_read:
            return None
        self._barren = 0
        self._bad.bad_rows += samples.report.bad_rows
        refuse_bad_rows(self._bad, self._rules.max_bad_rows)
        self._check(samples)
        end = Position(begin.epoch, block=begin.block + 1, read=self._reader.read, state=self._reader.state())
        return Block(begin, end, samples)

    def _refuse_barren(self, count: int, report: DataReport) -> None:
        self._barren += count
        refuse_bad_rows(report, self._rules.max_bad_rows)
        if self._barren >= BARREN_ROWS:
            reasons = ", ".join(f"{number:,} × {reason}" for reason, number in report.rows_dropped.most_common(3))
            raise DataError(
                f"{self._barren:,} rows of {self.name} one after another gave nothing to train on ({reasons}); look at them with"
                " `mt-data inspect`"
            )


@dataclass(frozen=True)
class _StreamRow:
    """A row of the global sequence, the samples that its numbers mean, and where the next one begins."""

    group: Group
    samples: EncodedSamples
    after: Position


class StreamLoader(Loader):
    """As ``Loader``, over the blocks of a stream. ``report`` counts the rows of the blocks that were used up."""

    def __init__(self, blocks: Blocks, objective: Objective, **options: Any) -> None:
        super().__init__(blocks.first.samples, objective, **options)
        self._blocks, self._options = blocks, options
        self._counted = (-1, -1)
        self.report = DataReport()

    def steps_in(self, epochs: float) -> int:
        raise AssertionError("a stream has no length; a run without train.steps was refused")

    def windows(self, position: Position) -> Iterator[Window]:
        """Optimizer steps from ``position`` on. A step crosses blocks, and never an epoch. Raises ``DataError`` for an epoch of none."""
        while True:
            rows, at_start = self._rows_from(position), (position.block, position.row) == (0, 0)
            while step := list(islice(rows, self.global_batch_size)):
                at_start, position = False, step[-1].after
                row_ids = tuple(dict.fromkeys(row.samples.row_ids[number] for row in step for number in row.group))
                batches = [self._joined(part) for part in self._share(step)]
                yield Window(batches, row_ids, position)
            if at_start:
                raise DataError(
                    f"{self._blocks.name} gave nothing to train on in epoch {position.epoch}; it can be read only once, or all of its"
                    " rows were dropped. Set a smaller --train.steps, or give it more rows"
                )
            position = Position(position.epoch + 1)

    def _rows_from(self, position: Position) -> Iterator[_StreamRow]:
        block = self._blocks.block(replace(position, row=0))
        start = position.row
        while block is not None:
            rows = self._rows_of(block)
            for number, group in enumerate(rows.cut(start, len(rows)), start=start + 1):
                after = replace(block.begin, row=number) if number < len(rows) else block.end
                yield _StreamRow(group, block.samples, after)
            self._count(block)
            start, block = 0, self._blocks.block(block.end)

    def _rows_of(self, block: Block) -> EpochRows:
        """The rows of a block, shuffled and packed as those of a whole epoch are, with a seed of its own."""
        seed = int(np.random.SeedSequence([self.seed, block.begin.block]).generate_state(1)[0])
        return Loader(block.samples, self.objective, **{**self._options, "seed": seed}).rows(block.begin.epoch)

    def _joined(self, rows: Sequence[_StreamRow]) -> Batch:
        """A micro-batch of rows that may come from several blocks."""
        samples, groups = EncodedSamples(), []
        for row in rows:
            first = len(samples)
            for number in row.group:
                samples.add(row.samples[number])
            groups.append(tuple(range(first, len(samples))))
        return make_batch(samples, self.objective, groups, self.sequence_len if self.packing else None, self.part)

    def _count(self, block: Block) -> None:
        """Once, though a position may be read again."""
        place = (block.begin.epoch, block.begin.block)
        if place > self._counted:
            self._counted = place
            block.samples.report.hashes = None  # which would grow with the stream
            self.report = DataReport.total([self.report, block.samples.report])
