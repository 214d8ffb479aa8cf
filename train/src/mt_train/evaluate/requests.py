"""Requests for scores as rows of tokens and places in them: what a forward has to compute, each thing once.

Shapes: P pairs of a place and a token that is scored there, n scored tokens of one request, k likeliest tokens of a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mt_core.errors import UsageError
from mt_core.evaluation import Continuation, Score, TokenValues
from mt_core.rows import Sample

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Requests:
    """Rows that a model reads, and what is asked of it there.

    ``rows`` are sorted, so that those with a common beginning are neighbours, and none comes twice. ``pairs_P3`` are (row, place,
    token): how likely is the token after this place? ``ends`` are where the pairs of each request end, in the order of the requests.
    """

    rows: tuple[Ids, ...]
    pairs_P3: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of_continuations(cls, asked: Sequence[Continuation], longest: int) -> Requests:
        """Return the requests for these targets. Raises ``UsageError`` for one that is empty, or longer than ``longest`` tokens."""
        for number, request in enumerate(asked):
            if not len(request.context) or not len(request.target):
                empty = "context" if not len(request.context) else "target"
                raise UsageError(
                    f"request {number} has an empty {empty}; a text begins with what the tokenizer puts in front"
                    " (mt_core.begin_ids), else with its end token"
                )
        spans = [range(len(each.context), len(each.context) + len(each.target)) for each in asked]
        return cls._of([(*each.context, *each.target) for each in asked], spans, longest)

    @classmethod
    def of_samples(cls, samples: Sequence[Sample], longest: int) -> Requests:
        """Return the requests for the trained tokens of samples; a first token is never predicted.

        Documents of one sample do not see one another here either: each is a row of its own.
        """
        texts: list[Ids] = []
        spans: list[list[int]] = []
        for sample in samples:
            if sample.media:
                raise UsageError(
                    f"{sample.row_id} has {len(sample.media)} parts that are no text, and values of tokens are given for text alone; leave"
                    " such rows out of the evaluation (mt-eval without --evaluations gives their loss)"
                )
            for document in sample.spans:
                span = np.flatnonzero(np.asarray(sample.trained[document], dtype=bool))
                texts.append(tuple(map(int, sample.ids[document])))
                spans.append(span[span > 0].tolist())
        found = cls._of(texts, spans, longest)
        last = np.cumsum([len(sample.documents) or 1 for sample in samples], dtype=np.int64) - 1
        return replace(found, ends=found.ends[last])

    @classmethod
    def _of(cls, texts: Sequence[Ids], places: Sequence[Iterable[int]], longest: int) -> Requests:
        listed = [list(each) for each in places]
        # What comes after the last scored token changes nothing, and that token itself need not be read.
        read = [text[: each[-1]] if each else () for text, each in zip(texts, listed, strict=True)]
        for number, row in enumerate(read):
            if len(row) > longest:
                raise UsageError(
                    f"request {number} has {len(row)} tokens before its last one, and the model takes {longest}; shorten its context"
                )
        rows = sorted({row for row in read if row})
        numbers = {row: number for number, row in enumerate(rows)}
        pairs = [
            (numbers[row], place - 1, text[place])
            for row, text, each in zip(read, texts, listed, strict=True)
            for place in each
        ]
        ends = np.cumsum([len(each) for each in listed], dtype=np.int64)
        return cls(tuple(rows), np.array(pairs, np.int64).reshape(-1, 3), ends)

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.rows))

    def pairs_by_row(self) -> list[NDArray[np.int64]]:
        """The numbers of each row's pairs."""
        order = np.argsort(self.pairs_P3[:, 0], kind="stable")
        cuts = np.searchsorted(self.pairs_P3[order, 0], np.arange(1, len(self.rows)))
        return np.split(order, cuts) if self.rows else []

    def windows(self, rows: int) -> list[Window]:
        """Return these requests in pieces of at most so many rows."""
        return [
            self._window(range(start, min(start + rows, len(self.rows)))) for start in range(0, len(self.rows), rows)
        ]

    def _window(self, rows: range) -> Window:
        numbers = np.flatnonzero((self.pairs_P3[:, 0] >= rows.start) & (self.pairs_P3[:, 0] < rows.stop))
        pairs = self.pairs_P3[numbers] - np.array([rows.start, 0, 0])
        return Window(self.rows[rows.start : rows.stop], pairs, np.array([len(pairs)]), numbers)

    def scores(self, values_P: NDArray[np.float64]) -> list[Score]:
        """Put the values of all pairs (``width(1)`` columns) together to a score for each request."""
        hit_P = values_P[:, 1] == self.pairs_P3[:, 2]
        found = []
        for start, end in pairwise([0, *self.ends.tolist()]):
            found.append(Score(float(values_P[start:end, 0].sum()), bool(hit_P[start:end].all())))
        return found

    def token_values(self, values_P: NDArray[np.float64], top: int) -> list[TokenValues]:
        """The values of each request's tokens."""
        parts = np.split(values_P, self.ends[:-1]) if len(self.ends) else []
        return [TokenValues(part[:, 0], part[:, 1 : 1 + top].astype(np.int64), part[:, 1 + top :]) for part in parts]


@dataclass(frozen=True)
class Window(Requests):
    """Some rows of other requests, with their pairs; ``numbers`` are those of the pairs there."""

    numbers: NDArray[np.int64]

    def share(self, part: int, parts: int) -> Window:
        """Part ``part`` of ``parts``: neighbouring rows with about as many tokens as the others have."""
        ends = np.cumsum([0, *map(len, self.rows)])
        first, last = (int(np.searchsorted(ends, ends[-1] * at / parts)) for at in (part, part + 1))
        own = self._window(range(first, min(last, len(self.rows))))
        return Window(own.rows, own.pairs_P3, own.ends, self.numbers[own.numbers])


def width(top: int) -> int:
    """Return how many values a pair has: its log-probability, then the likeliest tokens, then their log-probabilities."""
    return 1 + 2 * top
