"""Samples that an objective makes of rows, many at a time where it can: tokenizers are several times as fast with many texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

from mt_core.errors import DataError
from mt_core.model_protocols import Objective
from mt_core.rows import Rejected, Row, Sample

AT_ONCE = 64
"""Rows that an objective gets at a time: enough for threads of a tokenizer, few enough that their ids stay in the processor's cache."""

Given = TypeVar("Given")
Got = TypeVar("Got")
Outcome = Sample | Rejected | DataError
"""Outcome of a row; an error is a row that cannot be used."""


@runtime_checkable
class EncodesMany(Protocol):
    """An objective that encodes many rows at once, with the same result as ``encode`` for each."""

    def encode_many(self, rows: Sequence[Row]) -> list[Sample | Rejected]: ...


@runtime_checkable
class EncodesTogether(Protocol):
    """An objective whose sample of a row has something of the rows beside it, up to 64 of them. Which these are depends on the
    dataset alone. ``encode`` gives a sample of a row by itself."""

    def encode_together(self, rows: Sequence[Row]) -> list[Sample | Rejected | DataError]: ...


def encode_rows(read: Callable[[int], Row], indices: Iterable[int], objective: Objective) -> Iterator[Outcome]:
    """Encode each row, in order, and yield what becomes of it. ``read`` gives the row at an index, or raises ``DataError``."""
    waiting = iter(indices)
    while numbers := [int(number) for number in islice(waiting, AT_ONCE)]:
        rows = [_try(read, number) for number in numbers]
        whole = [row for row in rows if not isinstance(row, DataError)]
        encoded = iter(_encode(whole, objective))
        yield from (row if isinstance(row, DataError) else next(encoded) for row in rows)


def _encode(rows: Sequence[Row], objective: Objective) -> Sequence[Outcome]:
    if isinstance(objective, EncodesTogether):
        return [_name_row(row, each) for row, each in zip(rows, objective.encode_together(rows), strict=True)]
    if isinstance(objective, EncodesMany):
        try:
            return objective.encode_many(rows)
        except DataError:  # one of them; which one, and that the others are good, shows one by one
            pass
    return [_name_row(row, _try(objective.encode, row)) for row in rows]


def _try(function: Callable[[Given], Got], value: Given) -> Got | DataError:
    try:
        return function(value)
    except DataError as error:
        return error


def _name_row(row: Row, outcome: Outcome) -> Outcome:
    """Return what came of a row; a fault has the row's name."""
    return outcome.of_row(row["id"]) if isinstance(outcome, DataError) else outcome
