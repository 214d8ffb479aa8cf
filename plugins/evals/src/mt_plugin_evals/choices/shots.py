"""Examples before a question: which ones, and in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import Literal

from mt_core import DataError

from .questions import Question


class Shots:
    """``count`` examples of the question's own group, never the question itself.

    Their order is that of the file, the same for each question; or they are drawn from (``seed``, file and line), so that neither the
    other questions nor the folder in which the file lies change them.
    """

    def __init__(self, pool: Sequence[Question], *, count: int, order: Literal["file", "random"], seed: int) -> None:
        self._count, self._order, self._seed = count, order, seed
        self._pools: defaultdict[str, list[Question]] = defaultdict(list)
        for each in pool:
            self._pools[each.group].append(each)

    def of(self, question: Question) -> list[Question]:
        """Return the examples. Raises ``DataError`` where the group has too few."""
        if not self._count:
            return []
        pool = self._pools[question.group]
        found = self._first(pool, question) if self._order == "file" else self._draw(pool, question)
        if len(found) < self._count:
            where = f" of {question.group}" if question.group else ""
            raise DataError(
                f"{question.id}: shots is {self._count}, and there are {len(found)} other questions{where} to take them from. Lower shots,"
                " or give rows for shots that have more."
            )
        return found

    def _first(self, pool: Sequence[Question], question: Question) -> list[Question]:
        return list(islice((each for each in pool if not _is_same(each, question)), self._count))

    def _draw(self, pool: Sequence[Question], question: Question) -> list[Question]:
        name = question.id.replace("\\", "/").rpartition("/")[2]
        random = Random(f"{self._seed}:{name}")
        drawn = random.sample(pool, min(self._count + 1, len(pool)))  # one more, should the question be among them
        found = self._first(drawn, question)
        return found if len(found) == self._count else self._first(random.sample(pool, len(pool)), question)


def _is_same(one: Question, other: Question) -> bool:
    return (one.fields, one.choices) == (other.fields, other.choices)
