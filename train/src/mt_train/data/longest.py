"""The longest rows of a run as batches: what needs the most memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from mt_train.data.epoch import Group
from mt_train.data.loader import Loader, make_batch, row_length

if TYPE_CHECKING:
    from mt_core.nn import Batch


@dataclass(frozen=True)
class LongestRows:
    """The longest rows of a run; of a stream those of its first block, at full length."""

    loader: Loader
    full_length: bool

    def batches(self, size: int, count: int) -> list[Batch]:
        """Return batches of so many rows, twice where a step has several micro-batches: gradients are then kept meanwhile."""
        samples, loader = self.loader.samples, self.loader
        groups: list[Group] = [(int(number),) for number in np.argsort(samples.lengths)[::-1][:size]]
        if loader.packing:
            groups = list(loader.rows(0).cut(0, size))
        groups = list(islice(cycle(groups), size))
        length = loader.sequence_len if self.full_length else row_length(loader, samples, groups)
        return [make_batch(samples, loader.objective, groups, length, loader.part)] * min(2, count)
