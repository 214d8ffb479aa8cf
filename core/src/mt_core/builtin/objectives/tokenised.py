"""Rows that are token ids already."""

from __future__ import annotations

from typing import Any, NoReturn

from mt_core import DataError, Row, Sample

_NOT_TRAINED = -100
_MOST = 1 << 31


def tokenised(row: Row) -> Sample | None:
    """The sample of a row with ``input_ids``, as they are; ``None`` for any other row.

    ``labels`` (unshifted; -100 is not trained on) or ``trained`` (a boolean for each token) say what is trained on; without
    them everything is. Raises ``DataError`` where they do not fit the ids.
    """
    if "input_ids" not in row:
        return None
    ids = _list(row, "input_ids", int)
    if not all(0 <= each < _MOST for each in ids):
        _refuse(row, f"input_ids has an id that is not from 0 to {_MOST - 1}")
    if "labels" in row:
        labels = _list(row, "labels", int, len(ids))
        if any(label not in (_NOT_TRAINED, each) for label, each in zip(labels, ids, strict=True)):
            _refuse(row, "labels differ from input_ids where they are not -100; labels are not shifted here")
        return Sample(ids, [label != _NOT_TRAINED for label in labels], row["id"])
    trained = _list(row, "trained", bool, len(ids)) if "trained" in row else [True] * len(ids)
    return Sample(ids, trained, row["id"])


def _list(row: Row, name: str, kind: type, length: int | None = None) -> list[Any]:
    value = row[name]
    if not isinstance(value, list) or any(type(each) is not kind for each in value):
        _refuse(row, f"{name} is no list of {kind.__name__}")
    if length is not None and len(value) != length:
        _refuse(row, f"{name} has {len(value)} values for {length} input_ids")
    return value


def _refuse(row: Row, problem: str) -> NoReturn:
    raise DataError(f"{row['id']}: {problem}. Write the row anew, or leave the field out.")
