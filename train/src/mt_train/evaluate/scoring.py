"""Scores of tokens by a model that one process runs alone: each common beginning is read once, and logits exist at scored places only.

Shapes: B rows, T tokens, D model width, V vocabulary, U scored places, P pairs of a place and a token, k likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt_core.nn import Batch, TrainModel
from mt_train.evaluate.prefixes import Prefix, find_prefixes
from mt_train.evaluate.requests import Ids, Requests, width
from mt_train.generation.row_cache import RowCache

CHUNK = 256
"""Places whose logits exist at one time."""


class Scorer:
    """Computes the values of requests, ``batch_size`` rows at a time. ``top`` is k."""

    def __init__(self, model: TrainModel, *, batch_size: int, top: int = 1) -> None:
        self._model, self._size, self._top = model, batch_size, top
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def values(self, requests: Requests) -> NDArray[np.float64]:
        """Return (P, ``width(k)``) values of all pairs; see ``pair_values``."""
        self._rows = requests.rows
        self._values = np.zeros((len(requests.pairs_P3), width(self._top)))
        self._pairs = requests.pairs_P3
        if not self._rows:
            return self._values
        self._pairs_of = requests.pairs_by_row()
        limits = [int(self._pairs[pairs, 1].min(initial=len(row))) for pairs, row in self._each()]
        was_training = self._model.training
        self._model.eval()
        try:
            self._run(find_prefixes(self._rows, limits), None)
        finally:
            self._model.train(was_training)
        return self._values

    def _each(self) -> Iterator[tuple[NDArray[np.int64], Ids]]:
        yield from zip(self._pairs_of, self._rows, strict=True)

    def _run(self, prefix: Prefix, cache: RowCache | None) -> None:
        """Score the rows that begin with ``prefix``, whose keys and values are in the one row of ``cache``."""
        for rows in _chunks(sorted(prefix.rows, key=lambda row: len(self._rows[row])), self._size):
            self._score(
                rows, prefix.end, None if cache is None else self._fork(cache, [0] * len(rows)), [0] * len(rows)
            )
        small = [each for each in prefix.longer if not each.longer and len(each.rows) <= self._size]
        large = [each for each in prefix.longer if each.longer or len(each.rows) > self._size]
        if cache is None and self._model.ragged_batches:
            for together in _groups(sorted(small, key=lambda each: each.end), self._size):
                self._run_together(together)
        else:
            large += small
        for each in large:
            own = RowCache() if cache is None else self._fork(cache, [0])
            self._read([self._rows[each.all_rows[0]][each.start : each.end]], [each.start], own)
            self._run(each, own)

    def _run_together(self, prefixes: Sequence[Prefix]) -> None:
        """Score the rows of several small prefixes at the root, which are read at once."""
        longest = max(each.end for each in prefixes)
        padding = [longest - each.end for each in prefixes]
        cache = RowCache(torch.tensor(padding, device=self._device) if any(padding) else None)
        begun = [
            [0] * pad + list(self._rows[each.rows[0]][: each.end]) for pad, each in zip(padding, prefixes, strict=True)
        ]
        self._read(begun, [-pad for pad in padding], cache)
        rows = [row for each in prefixes for row in each.rows]
        owners = [number for number, each in enumerate(prefixes) for _ in each.rows]
        ends = [prefixes[owner].end for owner in owners]
        self._score(rows, ends, self._fork(cache, owners), [padding[owner] for owner in owners])

    def _score(
        self, rows: Sequence[int], begun: int | Sequence[int], cache: RowCache | None, padding: Sequence[int]
    ) -> None:
        """Read the rest of each row, of which the cache has ``begun`` tokens, and keep what is asked about it."""
        starts = [begun] * len(rows) if isinstance(begun, int) else list(begun)
        hidden_BTD = self._read([self._rows[row][at:] for row, at in zip(rows, starts, strict=True)], starts, cache)
        pairs = np.concatenate([self._pairs_of[row] for row in rows])
        if not len(pairs):
            return
        local = np.repeat(np.arange(len(rows)), np.array([len(self._pairs_of[row]) for row in rows], np.int64))
        places = local * hidden_BTD.shape[1] + self._pairs[pairs, 1] - np.asarray(starts)[local]
        unique_U, index_P = np.unique(places, return_inverse=True)
        hidden_UD = hidden_BTD.flatten(0, 1)[torch.from_numpy(unique_U).to(self._device)]
        tokens_P = torch.from_numpy(self._pairs[pairs, 2])
        self._values[pairs] = pair_values(self._model.head, hidden_UD, torch.from_numpy(index_P), tokens_P, self._top)

    def _fork(self, cache: RowCache, rows: Sequence[int]) -> RowCache:
        return cache.fork(torch.tensor(rows, device=self._device))

    def _read(self, texts: Sequence[Sequence[int]], starts: Sequence[int], cache: RowCache | None) -> Tensor:
        """(B, T, D) of these tokens, padded on the right, which begin at ``starts``; places before 0 count as 0."""
        longest = max(map(len, texts))
        ids_BT = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        positions_BT = (torch.tensor(starts)[:, None] + torch.arange(longest)).clamp(min=0)
        zeros_BT = torch.zeros_like(ids_BT)
        batch = Batch(ids_BT, zeros_BT, positions_BT, zeros_BT).to(self._device)
        hidden_BTD: Tensor = self._model(batch) if cache is None else self._model(batch, cache)
        return hidden_BTD


def pair_values(
    head: nn.Module, hidden_UD: Tensor, index_P: Tensor, tokens_P: Tensor, top: int, *, chunk: int = CHUNK
) -> NDArray[np.float64]:
    """(P, ``width(k)``): log-probability of each token at the place that ``index_P`` names, then the k likeliest there and theirs.

    ``index_P`` counts the rows of ``hidden_UD``. Log-softmax is in fp32; the head runs once for every ``chunk`` places.
    """
    values = np.zeros((len(index_P), width(top)))
    for start in range(0, len(hidden_UD), chunk):
        logits_CV = head(hidden_UD[start : start + chunk]).float()
        log_CV = torch.log_softmax(logits_CV, -1)
        best_Ck, best_ids_Ck = log_CV.topk(top, -1)
        here = ((index_P >= start) & (index_P < start + chunk)).nonzero()[:, 0]
        at = (index_P[here] - start).to(log_CV.device)
        chosen = log_CV[at, tokens_P[here].to(log_CV.device)]
        columns = [chosen[:, None].double(), best_ids_Ck[at].double(), best_Ck[at].double()]
        values[here.numpy()] = torch.cat(columns, 1).cpu().numpy()
    return values


def _chunks(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    yield from (rows[start : start + size] for start in range(0, len(rows), size))


def _groups(prefixes: Sequence[Prefix], size: int) -> Iterator[list[Prefix]]:
    """Yield prefixes with at most ``size`` rows together."""
    group: list[Prefix] = []
    for each in prefixes:
        if group and sum(len(other.rows) for other in group) + len(each.rows) > size:
            yield group
            group = []
        group.append(each)
    if group:
        yield group
