"""Where the rows of a run come from: which are trained on, and which are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from numpy.typing import NDArray

from mt_core.errors import ComponentError, DataError
from mt_core.protocols import Dataset, Stream
from mt_train.assemble.identity import evaluation_options, naming_eval
from mt_train.config.run import RunConfig
from mt_train.data.order import split_dataset
from mt_train.data.stream.reader import RowsInMemory
from mt_train.plugins.resolve import Resolved

Indices = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Which rows of which source are trained on, and which are held out."""

    train: Dataset
    kept: Indices
    evaluation: Dataset
    held_out: Indices
    is_one_document: bool = False
    """A source of one row holds out a part of that row."""


def rows_of(resolved: Resolved, dataset: Dataset | Stream | None) -> Rows:
    """Of the training source, where it is open already."""
    wanted = resolved.config.data.eval
    if dataset is None:
        dataset = source_of(resolved, "train")
    name = resolved.config.dataset.name
    if dataset is None:
        raise DataError(f"dataset {name!r} has no training split")
    if isinstance(dataset, Stream):
        raise ComponentError(f"dataset {name!r} names its files and is a stream; let its `files` give None then")
    everything = first_rows(resolved, dataset)
    evaluation = evaluation_of(resolved)
    if evaluation is not None:
        return Rows(dataset, everything, evaluation, first_rows(resolved, evaluation))
    assert not isinstance(wanted, str), "a path gives an evaluation"
    if len(everything) == 1 and wanted is not None and wanted < 1:
        return Rows(dataset, everything, dataset, (), is_one_document=True)
    kept, out = split_dataset(dataset, wanted, count=len(everything))
    return Rows(dataset, kept, dataset, out)


def evaluation_of(resolved: Resolved) -> Dataset | None:
    """Rows that are there to evaluate on: those of a path, or the dataset's own; ``None`` where they have to be cut."""
    config = resolved.config
    if config.data.eval is None:
        return None
    if not isinstance(config.data.eval, str):
        source = source_of(resolved, "eval")
        return None if source is None else whole(config, source)
    if source_of(resolved, "eval") is not None:
        raise DataError(
            f"data.eval={config.data.eval} is a path, and dataset {config.dataset.name!r} has rows for evaluation of its own, which would"
            " not be read. Keep one of the two."
        )
    with naming_eval(config):
        return whole(config, resolved.build("dataset", evaluation_options(config), split="train"))


def first_rows(resolved: Resolved, dataset: Dataset) -> range:
    """The rows of a source that are read (``data.read_rows``). Raises ``DataError`` when there are none."""
    if not len(dataset):
        name = resolved.config.dataset.name
        raise DataError(f"dataset {name!r} has no rows; look at its options (--dataset.…), or choose another --dataset")
    return range(min(len(dataset), resolved.config.data.read_rows or len(dataset)))


def whole(config: RunConfig, source: Dataset | Stream) -> Dataset:
    """A source to evaluate on; a stream is read to its end, or up to ``data.read_rows``."""
    if not isinstance(source, Stream):
        return source
    return RowsInMemory(list(islice(source.rows(0, config.train.seed), config.data.read_rows)))


def source_of(resolved: Resolved, split: str) -> Dataset | Stream | None:
    """What the dataset builds for a split (train, eval); ``None`` where it has none."""
    source: Dataset | Stream | None = resolved.build("dataset", resolved.config.dataset.options, split=split)
    return source
