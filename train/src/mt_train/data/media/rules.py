"""Rules of a run's media: which kinds it reads, where their files may lie, and faults that name the kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mt_core.errors import DataError

FILES = frozenset({"image", "audio", "video"})
"""Kinds whose text in a row names a file; that of any other kind is its content, as letters."""

KNOWN = (*sorted(FILES), "dna", "rna", "protein")
"""Kinds that rows may have, whether or not an encoder of the run reads them."""

MOST_BYTES = 64 * 1024 * 1024
"""Bytes of the largest part, unless an encoder reads larger ones: a PNG of 20 megapixels has less."""


@dataclass(frozen=True, kw_only=True)
class MediaRules:
    """Rules for parts of rows that are no text.

    ``kinds`` are those that encoders of the run read (``image``). Files lie below one of the ``roots``, where relative paths are looked
    for in their order, and have at most ``max_bytes``, as content in rows has; ``root_option`` names another root. What one of the
    ``patterns`` finds in a text is a part of its kind: the group of the pattern, or all of it, is the part's value.
    """

    kinds: frozenset[str]
    roots: tuple[Path, ...]
    max_bytes: int = MOST_BYTES
    root_option: str = "data.media_root"
    """Option that names another root; empty where there is none."""
    patterns: Mapping[str, re.Pattern[str]] = field(default_factory=dict)

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Every kind that a row may have, each once."""
        return tuple(dict.fromkeys((*KNOWN, *sorted(self.kinds))))

    @cached_property
    def fields(self) -> tuple[tuple[str, tuple[str, str]], ...]:
        """Each of these kinds, and names of fields with its items."""
        return tuple((kind, (kind, f"{kind}s")) for kind in self.known)

    def describe(self) -> str:
        """Name for a message what the run reads."""
        return ", ".join(("text", *sorted(self.kinds)))


class MediaError(DataError):
    """A part of a row that cannot be used. ``kind`` is a short name of what is wrong, the same for every row, for counts.

    ``files`` are those on which that depends: where one of them is another, the part may be a good one.
    """

    def __init__(self, message: str, kind: str, files: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.kind, self.files = kind, files

    def __reduce__(self) -> tuple[type[MediaError], tuple[str, str, tuple[str, ...]]]:
        return type(self), (str(self), self.kind, self.files)


def kind_of(error: BaseException | None) -> str:
    """Return the kind of a fault, or of what it was raised from; any error may have a text of that name."""
    while error is not None:
        if isinstance(kind := getattr(error, "kind", ""), str) and kind:
            return kind
        error = error.__cause__
    return ""


UNREAD = "part that no encoder reads"
COUNT = "count of parts"
SHAPE = "part of no known form"
MARK = "mark in a text"
URL = "URL"
MISSING = "no such file"
OUTSIDE = "file outside the roots"
IRREGULAR = "no regular file"
LARGE = "too many bytes"
EMPTY = "empty part"
BASE64 = "broken base64"
LETTERS = "sequence of no letters"
ARCHIVE = "archive"
