"""Places of media in texts: ``<image>`` and the like, which stand for nothing where no encoder reads them, or nothing is given for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mt_core.rows import Row
from mt_train.data.media.marks import mark_parts
from mt_train.data.media.rules import MediaRules
from mt_train.data.texts import texts_in

_WITHOUT_ENCODERS = MediaRules(kinds=frozenset(), roots=())


def find_place(content: Any, kinds: Iterable[str]) -> str | None:
    """Return the first of these kinds that a text in this has a place for: ``<image>``, ``<dna>`` …"""
    texts = texts_in(content)
    return next((kind for kind in sorted(kinds) if any(f"<{kind}>" in text for text in texts)), None)


def refuse_parts(row: Row) -> None:
    """Raise ``MediaError`` for a text with a place for an item of a field, as ``<image>`` beside ``images``: a run without encoders would
    train on its letters."""
    for kind, names in _WITHOUT_ENCODERS.fields:
        if any(_is_given(row.get(name)) for name in names) and find_place(dict(row), (kind,)):
            mark_parts(row, _WITHOUT_ENCODERS)


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | list | tuple) and not value)
