"""Values of rows that are media: paths, content, base64 of it, and objects with one of these.

A text is the path of a file, or a ``data:`` URI, where its kind is one of files; that of a sequence is its letters.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from mt_core.errors import show_value
from mt_core.rows import MediaPart
from mt_train.data.media.archives import is_member, read_member
from mt_train.data.media.roots import find_file, refuse_size
from mt_train.data.media.rules import BASE64, EMPTY, FILES, LETTERS, SHAPE, MediaError, MediaRules

_DATA = "data:"
_ENCODED = ("data", "base64")
"""Keys of base64 without a header."""

_SPACE = re.compile(r"\s")
"""Lines of base64 are joined; without any, as mostly, no copy of a large text is made."""

_DEPTH = 3
"""Objects in one another: ``{"source": {"data": …}}`` in a content part."""


def build_part(kind: str, value: Any, rules: MediaRules, place: str) -> MediaPart:
    """Return the part that a value of a row stands for. Raises ``MediaError``."""
    return _build(kind, value, rules, place, _DEPTH)


def keys_of(kind: str) -> tuple[str, ...]:
    """Keys of an object that may have the value of such a part, in the order in which they are looked at."""
    return ("bytes", *_ENCODED, kind, f"{kind}_url", f"input_{kind}", "source", "sequence", "path", "url")


def _build(kind: str, value: Any, rules: MediaRules, place: str, depth: int) -> MediaPart:
    if isinstance(value, bytes):
        return _of_content(kind, value, rules, place)
    if isinstance(value, str):
        return _of_text(kind, value, rules, place) if kind in FILES else _of_letters(kind, value, rules, place)
    key = (
        next((key for key in keys_of(kind) if value.get(key) is not None), None) if isinstance(value, Mapping) else None
    )
    if key is None or not depth:
        raise MediaError(
            f"{place} is {show_value(value, 60)}, which is no {kind} of a known form. Write {_wish(kind)}, or drop the row.",
            SHAPE,
        )
    inner = value[key]
    if key in _ENCODED and isinstance(inner, str):
        return _of_content(kind, _decode(inner, rules, place), rules, place)
    if key in ("path", "url") and isinstance(inner, str):
        return _of_text(kind, inner, rules, place)
    if key == "bytes" and not isinstance(inner, bytes):
        raise MediaError(
            f'{place} has "bytes" of type {type(inner).__name__}, not bytes. Write base64 of them as "data", or {_wish(kind)}.',
            SHAPE,
        )
    return _build(kind, inner, rules, place, depth - 1)


def _of_text(kind: str, text: str, rules: MediaRules, place: str) -> MediaPart:
    if not text:
        raise MediaError(
            f"{place} is an empty text, where the path of a file is expected. Name one, or drop the row.", EMPTY
        )
    if text[: len(_DATA)].lower() == _DATA:
        head, comma, data = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise MediaError(
                f"{place} is a data: URI without ';base64,': {show_value(head, 60)}. Write its content so.", BASE64
            )
        return _of_content(kind, _decode(data, rules, place), rules, place)
    if is_member(text):
        return _of_content(kind, read_member(text, rules, place), rules, place)
    return MediaPart(kind, path=find_file(text, rules, place), place=place)


def _of_letters(kind: str, text: str, rules: MediaRules, place: str) -> MediaPart:
    letters = "".join(text.split())
    if not letters.isascii() or not letters.isprintable():
        raise MediaError(
            f"{place} has something else than letters: {show_value(text, 60)}. Write {kind} as ASCII letters, or drop the row.",
            LETTERS,
        )
    return _of_content(kind, letters.encode("ascii"), rules, place)


def _of_content(kind: str, content: bytes, rules: MediaRules, place: str) -> MediaPart:
    refuse_size(len(content), rules, f"{place} has")
    if not content:
        raise MediaError(f"{place} is an empty {kind}. Fill it, or drop the row.", EMPTY)
    return MediaPart(kind, content=content, place=place)


def _decode(text: str, rules: MediaRules, place: str) -> bytes:
    refuse_size(len(text) * 3 // 4 - 2, rules, f"{place} has")
    packed = "".join(text.split()) if _SPACE.search(text) else text
    try:
        return b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as error:  # ValueError: a letter that is not ASCII
        raise MediaError(f"{place} is broken base64: {error}. Encode it anew, or drop the row.", BASE64) from error


def _wish(kind: str) -> str:
    return "the path of a file, or a data: URI" if kind in FILES else "its letters as a text"
