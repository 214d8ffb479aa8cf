"""Order of the rows: pure functions of seed, epoch and index, the same for any number of ranks."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import DataError
from mt_core.protocols import Dataset, Repeating

SPLIT_SEED = 20_011
"""Seed of the held-out split. Not the run's seed: runs with other seeds stay comparable on the same held-out rows."""


def permutation(count: int, *, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """The order of ``count`` samples in one epoch."""
    if not shuffle:
        return np.arange(count)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


def as_written(number: float) -> Fraction:
    """The decimal number that somebody wrote: 1.1, and not the float next to it, of which a ceiling may be one more."""
    return Fraction(str(number))


def split_held_out(
    count: int, size: float | None, *, limit: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row indices (training, held out); ``size`` is a share below 1, a number of rows, or ``None``.

    Of the held-out ones only the ``limit`` that are drawn first are returned: those of ``size=limit``.

    Raises ``DataError`` when nothing would be left to train on.
    """
    if size is None:
        return np.arange(count), np.arange(0)
    wanted = max(1, math.floor(count * as_written(size))) if size < 1 else int(size)
    if wanted >= count:
        raise DataError(
            f"data.eval={size} holds out {wanted} of {count} rows and leaves none to train on; set a smaller data.eval, or none"
        )
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(count)
    return np.sort(order[wanted:]), np.sort(order[:wanted][:limit])


def split_dataset(
    dataset: Dataset, size: float | None, *, count: int | None = None, limit: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split as ``split_held_out`` does, of the first ``count`` rows.

    A row that the dataset repeats is held out once and trained on never, or the other way round.
    """
    if not isinstance(dataset, Repeating):
        return split_held_out(len(dataset) if count is None else count, size, limit=limit)
    originals = np.asarray(dataset.originals())[:count]
    distinct = np.unique(originals)
    kept, out = split_held_out(len(distinct), size, limit=limit)
    return np.flatnonzero(np.isin(originals, distinct[kept])), distinct[out]
