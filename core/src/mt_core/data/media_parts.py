"""Parts of rows and turns that are no text: images and the like, which stand where their texts have marks.

Those of fields that are texts are together in ``row["media"]``, in the order of ``MEDIA_FIELDS``; a turn has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core.rows import MEDIA_MARK, MediaPart, Row

MEDIA_FIELDS = (
    "text",
    "system",
    "instruction",
    "input",
    "prompt",
    "choices",
    "response",
    "output",
    "chosen",
    "rejected",
)
"""Texts of a row that may have media, in the order in which they stand in a conversation. A list of turns has its own in each turn."""


def media_parts(value: Mapping[str, Any]) -> tuple[MediaPart, ...]:
    """Return the ``media`` of a turn or a row: parts that the reader of rows has made. What a file says under that name is none."""
    media = value.get("media")
    return media if isinstance(media, tuple) and all(isinstance(part, MediaPart) for part in media) else ()


def media_of(row: Row, *names: str) -> dict[str, tuple[MediaPart, ...]]:
    """Return the parts that stand in these texts of a row, as ``media`` of a message; none is an empty mapping."""
    if not (parts := media_parts(row)):
        return {}
    found: list[MediaPart] = []
    done = 0
    for name in MEDIA_FIELDS:
        count = _count_marks(row.get(name))
        found += parts[done : done + count] if name in names else ()
        done += count
    return {"media": tuple(found)} if found else {}


def _count_marks(value: Any) -> int:
    """Count the marks in a text, or in the texts of a list, as choices are."""
    texts = value if isinstance(value, list) else [value]
    return sum(text.count(MEDIA_MARK) for text in texts if isinstance(text, str))
