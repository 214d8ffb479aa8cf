"""Rows to batches: the same global sequence of rows for any number of ranks, and an exact position to resume from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mt_core.model_protocols import Objective
from mt_train.config.data import PAD_MULTIPLE, Packing
from mt_train.data.epoch import EpochRows, Group, count_packed_steps
from mt_train.data.order import as_written, permutation
from mt_train.data.packing import WINDOW, MediaLimit, group_by_length, pack_window, padded_size
from mt_train.data.sample_rows import SampleRows
from mt_train.data.samples import EncodedSamples
from mt_train.data.source_labels import Sources, label_sources

if TYPE_CHECKING:
    from mt_core.nn import Batch

T = TypeVar("T")

GROUPED_STEPS = 50
"""Steps whose rows ``data.group_by_length`` sorts together, as many as transformers does."""


@dataclass(frozen=True)
class Position:
    """Beginning of the next optimizer step: an epoch, and a row of its global sequence.

    Of a stream: a row of a ``block`` that begins behind ``read`` rows of the source, whose own ``state`` was this there.
    """

    epoch: int = 0
    row: int = 0
    block: int = 0
    read: int = 0
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Window:
    """The rows of one optimizer step, as this rank's micro-batches, and where the next one begins."""

    batches: list[Batch]
    names: Sequence[str]
    after: Position
    epoch: int
    """Epoch of the rows. The place where the step begins may be the end of the epoch before: a stream's is known when no row comes."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures that the record of the step has beside its own."""
    passes: float | None = None
    """Passes over the rows up to ``after``; ``None`` where nobody knows how many there are."""

    @property
    def row_ids(self) -> tuple[str, ...]:
        """The id of each row, once. They are read when somebody asks."""
        return tuple(dict.fromkeys(self.names))


class WaitingEnded(Exception):  # noqa: N818 - no error: a wish to stop came while the source of a stream was waited for
    """The next window has not come, and is not wanted any more."""


class Loader:
    """Training rows in order. Every rank gets equally many micro-batches of each step; a short last one has empty rows.

    ``rank`` and ``world`` count those that have rows of their own; ``part`` is the share of each row's tokens. ``fit`` says how rows
    are packed, ``most_features`` how many features of media one of them has at most, ``pad_multiple`` (tokens) how long padded ones
    are. Whoever has no first layer leaves the content of media where it is (``reads_media``).
    """

    def __init__(
        self,
        samples: EncodedSamples,
        objective: Objective,
        *,
        sequence_len: int,
        packing: bool,
        micro_batch_size: int,
        global_batch_size: int,
        rank: int,
        world: int,
        seed: int,
        shuffle: bool = True,
        group_by_length: bool = False,
        part: tuple[int, int] = (0, 1),
        fit: Packing = "best_fit",
        most_features: int | None = None,
        pad_multiple: int = PAD_MULTIPLE,
        reads_media: bool = True,
        sources: Sources | None = None,
    ) -> None:
        self.samples, self.sources = samples, sources
        self.objective = objective
        self.sequence_len = sequence_len
        self.packing = packing
        self.micro_batch_size = micro_batch_size
        self.global_batch_size = global_batch_size
        self.rank = rank
        self.world = world
        self.seed = seed
        self.shuffle = shuffle
        self.part = part
        self.group_by_length = group_by_length
        self.fit = fit
        self.most_features = most_features
        self.pad_multiple = pad_multiple
        self.reads_media = reads_media
        self._epoch: tuple[int, EpochRows] | None = None

    def rows(self, epoch: int) -> EpochRows:
        """The global sequence of rows of one epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = permutation(len(self.samples), seed=self.seed, epoch=epoch, shuffle=self.shuffle)
            window = GROUPED_STEPS * self.global_batch_size if self._sorts else WINDOW
            self._epoch = epoch, EpochRows(order, partial(self._group, epoch), window)
        return self._epoch[1]

    @property
    def _sorts(self) -> bool:
        return self.group_by_length and not self.packing

    def _group(self, epoch: int, numbers: NDArray[np.int64], start: int) -> list[Group]:
        seed = [self.seed, epoch, start]
        if self.packing:
            return _pack(self.samples, numbers, self.sequence_len, seed, self.fit, self.most_features)
        if self._sorts:
            lengths = self.samples.lengths_of(numbers).tolist()
            return group_by_length(numbers.tolist(), lengths, self.global_batch_size, seed=seed)
        return [(number,) for number in numbers.tolist()]

    def steps_in(self, epochs: float) -> int:
        """Optimizer steps of so many epochs, in exact arithmetic."""
        exact = as_written(epochs)
        whole = math.floor(exact)
        steps = self._steps_of_epochs(whole)
        if exact > whole:
            steps += math.ceil((exact - whole) * len(self.rows(whole)) / self.global_batch_size)
        return max(1, steps)

    def _steps_of_epochs(self, count: int) -> int:
        most = -(-len(self.samples) // self.global_batch_size)
        if not self.packing or most == 1:  # a row for each sample, in whatever order; or one step for however few rows
            return count * most
        tokens = int(self.samples.lengths_of(np.arange(len(self.samples))).sum())
        return count_packed_steps(self.rows, count, self.global_batch_size, least_rows=-(-tokens // self.sequence_len))

    def has(self, position: Position) -> bool:
        """Return whether an optimizer step can begin there."""
        return position.row == 0 or self.rows(position.epoch).has(position.row)

    def windows(self, position: Position, stop: Callable[[], bool] = lambda: False) -> Iterator[Window]:
        """Optimizer steps from ``position`` on, without end. A step never crosses an epoch.

        Rows that are waited for end with ``WaitingEnded`` once ``stop`` says so; those in files are there.
        """
        while True:
            rows = self.rows(position.epoch)
            step = rows.cut(position.row, self.global_batch_size)
            end, epoch = position.row + len(step), position.epoch
            position = Position(position.epoch, end) if rows.has(end) else Position(position.epoch + 1)
            names = self.samples.row_ids.of(np.fromiter(chain.from_iterable(step), np.int64))
            batches = [self._batch(part) for part in self._share(step)]
            self._read_ahead(position)
            share = rows.share_before(position.row) if position.row else 0.0
            yield Window(batches, names, position, epoch, passes=position.epoch + share)

    def _read_ahead(self, position: Position) -> None:
        """Begin to read the media of the next step, where it is of the same epoch."""
        reader = self.samples.reader
        if reader is None or not self.reads_media or position.row == 0:
            return
        step = self.rows(position.epoch).cut(position.row, self.global_batch_size)
        numbers = (number for part in self._share(step) for group in part for number in group)
        reader.read_ahead(span.item for number in numbers for span in self.samples.media_of(number))

    def _share(self, rows: Sequence[T]) -> list[Sequence[T]]:
        """This rank's rows of each micro-batch."""
        size, stride = self.micro_batch_size, self.micro_batch_size * self.world
        starts = range(0, max(len(rows), 1), stride)
        return [rows[start + self.rank * size : start + (self.rank + 1) * size] for start in starts]

    def _batch(self, rows: Sequence[Group]) -> Batch:
        batch = self.batch_of(self.samples, rows)
        return batch if self.sources is None else label_sources(batch, chain.from_iterable(rows), self.sources)

    def batch_of(self, samples: EncodedSamples, rows: Sequence[Group]) -> Batch:
        """Make a batch of rows of some samples, as all of this loader's are."""
        length = row_length(self, samples, rows)
        return make_batch(samples, self.objective, rows, length, self.part, reads_media=self.reads_media)


class HeldOut:
    """The whole held-out part, in order, shared by the ranks."""

    def __init__(
        self,
        samples: EncodedSamples,
        objective: Objective,
        *,
        sequence_len: int,
        packing: bool,
        batch_size: int,
        rank: int,
        world: int,
        part: tuple[int, int] = (0, 1),
        fit: Packing = "best_fit",
        most_features: int | None = None,
        pad_multiple: int = PAD_MULTIPLE,
        reads_media: bool = True,
    ) -> None:
        self.samples = samples
        self.objective = objective
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.part = part
        self.sequence_len = sequence_len
        self.packing = packing
        self.pad_multiple = pad_multiple
        self.reads_media = reads_media

        def group(numbers: NDArray[np.int64], start: int) -> list[Group]:
            if packing:
                return _pack(samples, numbers, sequence_len, [0, 0, start], fit, most_features)
            return [(number,) for number in numbers.tolist()]

        self._group = group
        self.rows = EpochRows(np.arange(len(samples)), group, WINDOW)

    def part_of(self, numbers: NDArray[np.int64]) -> HeldOut:
        """Return the held-out part that has the samples with these numbers alone, in the same form."""
        part = copy(self)
        part.rows = EpochRows(numbers, self._group, WINDOW)
        return part

    def batches(self) -> Iterator[Batch]:
        """Yield this rank's batches; every rank has equally many."""
        return (batch for _, batch in self.numbered_batches())

    def numbered_batches(self) -> Iterator[tuple[Sequence[Group], Batch]]:
        """Yield this rank's batches with the numbers of the samples in each row."""
        size, stride = self.batch_size, self.batch_size * self.world
        for start in range(0, len(self.rows), stride):
            rows = self.rows.cut(start + self.rank * size, size)
            length = row_length(self, self.samples, rows)
            yield rows, make_batch(self.samples, self.objective, rows, length, self.part, reads_media=self.reads_media)


def _pack(
    samples: EncodedSamples,
    numbers: NDArray[np.int64],
    capacity: int,
    seed: list[int],
    fit: Packing,
    most_features: int | None,
) -> list[Group]:
    media = None if most_features is None else MediaLimit(samples.media_features_of(numbers), most_features)
    lengths = samples.lengths_of(numbers).tolist()
    return pack_window(numbers.tolist(), lengths, capacity, seed=seed, packing=fit, media=media)


def row_length(source: Loader | HeldOut, samples: EncodedSamples, rows: Sequence[Group]) -> int:
    """Tokens of each of some rows of ``samples``, which are computed together."""
    if source.packing:
        return source.sequence_len
    numbers = np.array([number for row in rows for number in row], dtype=np.int64)
    return padded_size(int(samples.lengths_of(numbers).max(initial=1)), source.pad_multiple, source.sequence_len)


def make_batch(
    samples: EncodedSamples,
    objective: Objective,
    rows: Sequence[Group],
    length: int | None,
    part: tuple[int, int] = (0, 1),
    *,
    reads_media: bool = True,
) -> Batch:
    """One batch on the host; without ``length`` as long as its longest row. No rows give one empty row.

    ``part`` (number, of how many) is this rank's share of each row's tokens; rows are padded to divide. Ranks that share rows all read
    all of their media.
    """
    content = SampleRows(samples, rows or [()])
    if length is None:
        length = padded_size(max(1, content.longest), PAD_MULTIPLE)
    number, parts = part
    batch = objective.collate(content, length=-(-length // parts) * parts)
    if samples.reader is not None and reads_media:
        batch = samples.reader(batch)
    return (batch if parts == 1 else batch.cut(number, parts)).with_index()
