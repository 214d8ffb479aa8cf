"""The sources of a run's rows: which are trained on, and which are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError
from mt_core.protocols import Dataset, Stream
from mt_train.assemble.identity import evaluation_options, naming_eval
from mt_train.assemble.parts import Parts
from mt_train.config.run import RunConfig
from mt_train.data.order import split_dataset
from mt_train.data.stream.reader import RowsInMemory

Indices = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """The rows of each source that are trained on, and which are held out."""

    train: Dataset
    kept: Indices
    evaluation: Dataset
    held_out: Indices
    is_one_document: bool = False
    """A source of one row holds out a part of that row."""


def rows_of(parts: Parts, dataset: Dataset | Stream | None) -> Rows:
    """Return the rows of a run; ``dataset`` is its training source, where that is open already."""
    wanted = parts.config.data.eval
    if dataset is None:
        dataset = parts.rows("train")
    name = parts.config.dataset.name
    if dataset is None:
        raise DataError(f"dataset {name!r} has no training split")
    if isinstance(dataset, Stream):
        raise ComponentError(f"dataset {name!r} names its files and is a stream; let its `files` give None then")
    everything = first_rows(parts.config, dataset)
    evaluation = evaluation_of(parts)
    if evaluation is not None:
        return Rows(dataset, everything, evaluation, evaluated_rows(parts.config, evaluation))
    assert not isinstance(wanted, str), "a path gives an evaluation"
    if len(everything) == 1 and wanted is not None and wanted < 1:
        return Rows(dataset, everything, dataset, (), is_one_document=True)
    kept, out = split_dataset(dataset, wanted, count=len(everything), limit=parts.config.eval.limit)
    return Rows(dataset, kept, dataset, out)


def evaluation_of(parts: Parts) -> Dataset | None:
    """Rows that are there to evaluate on: those of a path, or the dataset's own; ``None`` where they have to be cut."""
    config = parts.config
    if config.data.eval is None:
        return None
    if not isinstance(config.data.eval, str):
        source = parts.rows("eval")
        return None if source is None else read_whole(config, source)
    if parts.rows("eval") is not None:
        raise DataError(
            f"data.eval={config.data.eval} is a path, and dataset {config.dataset.name!r} has rows for evaluation of its own, which would"
            " not be read. Keep one of the two."
        )
    with naming_eval(config):
        source = parts.rows("train", evaluation_options(config))
        if source is None:
            raise DataError(f"dataset {config.dataset.name!r} has no training split there")
        return read_whole(config, source)


def first_rows(config: RunConfig, dataset: Dataset) -> range:
    """The rows of a source that are read (``data.read_rows``). Raises ``DataError`` when there are none."""
    if not len(dataset):
        name = config.dataset.name
        raise DataError(f"dataset {name!r} has no rows; look at its options (--dataset.…), or choose another --dataset")
    return range(min(len(dataset), config.data.read_rows or len(dataset)))


def evaluated_rows(config: RunConfig, dataset: Dataset) -> range:
    """The rows of a source that are evaluated: the first ``eval.limit`` of those that are read. Raises ``DataError`` without any."""
    return first_rows(config, dataset)[: config.eval.limit]


def read_whole(config: RunConfig, source: Dataset | Stream) -> Dataset:
    """Return a source to evaluate on; a stream is read to its end, or up to ``data.read_rows`` and ``eval.limit``."""
    if not isinstance(source, Stream):
        return source
    limits = [limit for limit in (config.data.read_rows, config.eval.limit) if limit is not None]
    return RowsInMemory(list(islice(source.rows(0, config.train.seed), min(limits, default=None))))
