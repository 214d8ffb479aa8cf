"""Rows that are token ids already."""

from __future__ import annotations

from itertools import compress
from typing import Any, NoReturn

from mt_core import DataError, Row, Sample

_NOT_TRAINED = -100
_MOST = 1 << 31
_MASKS = ("trained", "completion_mask", "assistant_masks")
"""Columns that say which tokens are trained on; the last two are those of TRL (https://huggingface.co/docs/trl/dataset_formats)."""


def tokenised_sample(row: Row) -> Sample | None:
    """The sample of a row with ``input_ids``, as they are; ``None`` for any other row.

    ``labels`` (unshifted; -100 is not trained on) or else masks (``trained``; true, false, 1 or 0 for each token) say what is trained
    on; without them, or where they are null, everything is. Places where ``attention_mask`` is 0 are padding and left out. Raises
    ``DataError`` where they do not fit the ids.
    """
    if row.get("input_ids") is None:
        return None
    ids = _list(row, "input_ids", int)
    if not all(0 <= each < _MOST for each in ids):
        _refuse(row, f"input_ids has an id that is not from 0 to {_MOST - 1}")
    trained = _read_trained(row, ids)
    if row.get("attention_mask") is not None and not all(mask := _flags(row, "attention_mask", len(ids))):
        ids, trained = list(compress(ids, mask)), list(compress(trained, mask))
    return Sample(ids, trained, row["id"])


def _read_trained(row: Row, ids: list[int]) -> list[bool]:
    if row.get("labels") is None:
        masks = [_flags(row, name, len(ids)) for name in _MASKS if row.get(name) is not None]
        return [all(flags) for flags in zip(*masks, strict=True)] if masks else [True] * len(ids)
    labels = _list(row, "labels", int, len(ids))
    if any(label not in (_NOT_TRAINED, each) for label, each in zip(labels, ids, strict=True)):
        _refuse(row, "labels differ from input_ids where they are not -100; labels are not shifted here")
    return [label != _NOT_TRAINED for label in labels]


def _flags(row: Row, name: str, length: int) -> list[bool]:
    if not isinstance(row[name], list) or any(each not in (0, 1) for each in row[name]):
        _refuse(row, f"{name} is no list of true and false, or 1 and 0")
    if len(row[name]) != length:
        _refuse(row, f"{name} has {len(row[name])} values for {length} input_ids")
    return list(map(bool, row[name]))


def _list(row: Row, name: str, kind: type, length: int | None = None) -> list[Any]:
    value = row[name]
    if not isinstance(value, list) or any(type(each) is not kind for each in value):
        _refuse(row, f"{name} is no list of {kind.__name__}")
    if length is not None and len(value) != length:
        _refuse(row, f"{name} has {len(value)} values for {length} input_ids")
    return value


def _refuse(row: Row, problem: str) -> NoReturn:
    raise DataError(f"{row['id']}: {problem}. Write the row anew, or leave the field out.")
