"""Several samples in one row, in windows of the global order: best fit, longest first, or one after another."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mt_train.config.data import Packing

WINDOW = 4096
"""Samples that are packed together. Larger windows fill rows better; smaller ones keep the order closer to the shuffle."""


@dataclass(frozen=True)
class MediaLimit:
    """Features that encoders make of each sample's media, and the ``most`` of a row; a sample with more has a row of its own."""

    features: Sequence[int]
    most: int

    def of(self, numbers: Sequence[int]) -> MediaLimit:
        """Return the features of some samples."""
        return MediaLimit([self.features[number] for number in numbers], self.most)


def pack(
    order: Sequence[int],
    lengths: Sequence[int],
    capacity: int,
    *,
    seed: int,
    epoch: int,
    packing: Packing = "best_fit",
    media: MediaLimit | None = None,
) -> list[tuple[int, ...]]:
    """Rows of sample numbers whose lengths add up to ``capacity`` tokens at most; the same for any number of ranks and workers.

    ``media`` has the features of each sample by its number.
    """
    rows: list[tuple[int, ...]] = []
    for start in range(0, len(order), WINDOW):
        numbers = order[start : start + WINDOW]
        own = [lengths[number] for number in numbers]
        of_window = None if media is None else media.of(numbers)
        rows += pack_window(numbers, own, capacity, seed=[seed, epoch, start], packing=packing, media=of_window)
    return rows


def pack_window(
    numbers: Sequence[int],
    lengths: Sequence[int],
    capacity: int,
    *,
    seed: Sequence[int],
    packing: Packing = "best_fit",
    media: MediaLimit | None = None,
) -> list[tuple[int, ...]]:
    """Rows of one window; ``lengths``, and the features of ``media``, are those of its samples, in their order.

    Rows of best fit are shuffled, since it sorts by length. No row goes over the end of a window, which leaves at most one row in
    thousands half empty, and lets a run go on from any row without a look at those before its window.
    """
    if packing == "sequential":
        return [tuple(numbers[place] for place in row) for row in next_fit(lengths, capacity, media)]
    if media is None or not any(media.features):
        packed = best_fit(range(len(numbers)), lengths, capacity)
    else:
        packed = best_fit_of_both(lengths, capacity, media)
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(len(packed))
    return [tuple(numbers[place] for place in packed[index]) for index in shuffled.tolist()]


def group_by_length(
    numbers: Sequence[int], lengths: Sequence[int], size: int, *, seed: Sequence[int]
) -> list[tuple[int, ...]]:
    """Rows of one sample each, in steps of ``size`` whose samples are about as long as each other. The steps are shuffled.

    A last step that is not full stays the last. As transformers' LengthGroupedSampler, but for windows that are the same on
    any number of ranks.
    """
    ranked = [numbers[place] for place in sorted(range(len(numbers)), key=lambda place: -lengths[place])]
    full = len(ranked) // size
    shuffled = np.random.Generator(np.random.PCG64(seed)).permutation(full)
    starts = [*(int(step) * size for step in shuffled), full * size]
    return [(number,) for start in starts for number in ranked[start : start + size]]


def best_fit(samples: Sequence[int], lengths: Sequence[int], capacity: int) -> list[tuple[int, ...]]:
    """Best-fit decreasing (D. S. Johnson, 1973): each sample goes where it leaves the least room."""
    rows: list[list[int]] = []
    most = len(samples)
    room: list[int] = []  # tokens left * most + row, sorted: as one number, which is compared faster than two
    for sample in sorted(samples, key=lengths.__getitem__, reverse=True):  # equal ones stay in their order
        length = lengths[sample]
        place = bisect_left(room, length * most)
        if place == len(room):
            rows.append([sample])
            left, row = capacity - length, len(rows) - 1
        else:
            left, row = divmod(room.pop(place), most)
            rows[row].append(sample)
            left -= length
        if left > 1:
            insort(room, left * most + row)
    return [tuple(row) for row in rows]


def best_fit_of_both(lengths: Sequence[int], capacity: int, media: MediaLimit) -> list[tuple[int, ...]]:
    """Best-fit decreasing with two limits: by the larger share that a sample takes of either, where it leaves the least room for tokens."""
    rows: list[list[int]] = []
    spare: list[int] = []  # features that a row has room for
    room: list[tuple[int, int]] = []  # tokens left and the row, sorted
    shares = [max(length / capacity, count / media.most) for length, count in zip(lengths, media.features, strict=True)]
    for sample in sorted(range(len(lengths)), key=shares.__getitem__, reverse=True):
        length, count = lengths[sample], media.features[sample]
        place = bisect_left(room, (length, 0))
        while place < len(room) and spare[room[place][1]] < count:
            place += 1
        if place == len(room):
            rows.append([sample])
            spare.append(media.most - count)
            left, row = capacity - length, len(rows) - 1
        else:
            left, row = room.pop(place)
            rows[row].append(sample)
            spare[row] -= count
            left -= length
        if left > 1:
            insort(room, (left, row))
    return [tuple(row) for row in rows]


def next_fit(lengths: Sequence[int], capacity: int, media: MediaLimit | None = None) -> list[range]:
    """Next fit (D. S. Johnson, 1973): samples in their order; one that does not fit begins the next row."""
    rows, start, used, features = [], 0, 0, 0
    for place, length in enumerate(lengths):
        count = 0 if media is None else media.features[place]
        is_over = used + length > capacity or (media is not None and features + count > media.most)
        if is_over and place > start:
            rows.append(range(start, place))
            start, used, features = place, 0, 0
        used += length
        features += count
    return [*rows, range(start, len(lengths))] if len(lengths) else []


def padded_size(longest: int, multiple: int, most: int | None = None) -> int:
    """Tokens of padded rows: those of the longest, rounded up to ``multiple``, but not beyond ``most``."""
    rounded = -(-longest // multiple) * multiple
    return rounded if most is None else max(longest, min(rounded, most))
