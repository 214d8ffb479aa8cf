"""The source of each document of a batch, where rows are of several datasets. D documents, I items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mt_core.nn import Batch

SOURCE = "source"
"""Value of documents: the number of their source."""


class Sources(NamedTuple):
    """Sources by their parts of figures' names, and the number of that of each sample."""

    names: tuple[str, ...]
    of_samples: NDArray[np.uint8]


def label_sources(batch: Batch, samples: Iterable[int], sources: Sources) -> Batch:
    """Return the batch, which has these samples in order, with the source of each document. It is on the host."""
    numbers = np.fromiter(samples, np.int64)
    if batch.items is None or not len(numbers):
        return batch
    of_items_I = sources.of_samples[numbers]
    items_D = np.searchsorted(batch.items.numpy(), np.arange(batch.document_count), side="right") - 1
    found = torch.from_numpy(of_items_I[items_D.clip(0)])
    return replace(batch, documents={**batch.documents, SOURCE: found})
