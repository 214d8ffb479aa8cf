"""Scores on the layouts where no rank may run the model alone: all run the same batches, and the head's place is taken by a reader.

Shapes: B rows, T tokens of a row (of this rank's part), D model width, P pairs of a place and a token, k likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt_core.nn import Batch
from mt_core.nn.collation import collate, flatten
from mt_core.rows import Sample
from mt_train.engine.engine import Engine
from mt_train.engine.plan import Plan
from mt_train.evaluate.requests import Requests, width
from mt_train.evaluate.scoring import pair_values


def read_values(
    engine: Engine, requests: Requests, *, batch_size: int, top: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of the pairs that were scored on this rank, and their (n, ``width(k)``) values. Collective.

    Over all ranks each pair is scored once, but for those that several stages or parts have no head for.
    """
    order = sorted(range(len(requests.rows)), key=lambda row: len(requests.rows[row]))
    plan, rank = engine.plan, engine.process.rank
    stride = batch_size * plan.data_ranks
    first = batch_size * plan.data_rank(rank)
    mine = [order[start + first : start + first + batch_size] for start in range(0, len(order), stride)]
    reader = _Reader(requests, mine, plan, rank, top)
    engine.read([_batch(requests, rows, plan, rank) for rows in mine], reader)
    return reader.findings()


def _batch(requests: Requests, rows: Sequence[int], plan: Plan, rank: int) -> Batch:
    number, parts = plan.part(rank)
    samples = [[Sample(requests.rows[row], [False] * len(requests.rows[row]), "")] for row in rows] or [[]]
    longest = max((len(requests.rows[row]) for row in rows), default=1)
    batch = collate(flatten(samples), length=-(-longest // parts) * parts, pad_id=0)
    return (batch if parts == 1 else batch.cut(number, parts)).with_index()


class _Reader:
    """Takes one batch after the other, and keeps the values of the pairs that are on this rank."""

    def __init__(self, requests: Requests, batches: Sequence[Sequence[int]], plan: Plan, rank: int, top: int) -> None:
        self._pairs_P3, self._top = requests.pairs_P3, top
        self._waiting = iter(batches)
        self._part = plan.part(rank)[0]
        self._pairs_of = requests.pairs_by_row()
        self._numbers: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []

    def __call__(self, hidden_BTD: Tensor, head: nn.Module, batch: Batch) -> None:
        rows, length = next(self._waiting), hidden_BTD.shape[1]
        pairs = np.concatenate([np.empty(0, np.int64), *(self._pairs_of[row] for row in rows)])
        local = np.repeat(np.arange(len(rows)), np.array([len(self._pairs_of[row]) for row in rows], np.int64))
        places = self._pairs_P3[pairs, 1] - self._part * length
        here = (places >= 0) & (places < length)
        pairs, places = pairs[here], (local * length + places)[here]
        unique_U, index_P = np.unique(places, return_inverse=True)
        hidden_UD = hidden_BTD.flatten(0, 1)[torch.from_numpy(unique_U).to(hidden_BTD.device)]
        tokens_P = torch.from_numpy(self._pairs_P3[pairs, 2])
        self._numbers.append(pairs)
        self._values.append(pair_values(head, hidden_UD, torch.from_numpy(index_P), tokens_P, self._top))

    def findings(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the pairs of this rank, and their values."""
        numbers = np.concatenate([np.empty(0, np.int64), *self._numbers])
        return numbers, np.concatenate([np.empty((0, width(self._top))), *self._values])
