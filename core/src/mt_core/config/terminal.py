"""Text for terminals: characters that a terminal would obey are written out, so that they are seen.

Names of files, rows, templates, configs, checkpoints and plugins may hold sequences that move the cursor, rename the window,
hide a line or turn the order of letters round (https://trojansource.codes). Commands write through ``show_standard_streams``; a backslash
and its digits are also how JSON writes such a character, so that JSON stays JSON and says the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_OBEYED = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u2028\u2029"  # other ends of a line
    "\u202a-\u202e\u2066-\u2069"  # embeddings, overrides and isolates of bidirectional text
    "\ud800-\udfff"  # half of a character: a name of a file that is no UTF-8
    "]"
)


def escape_controls(text: str) -> str:
    """Return the text with terminal control characters written out: ``\\x1b``, ``\\u202e``."""
    return _OBEYED.sub(_spell_out, text)


def _spell_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


class ShownStream:
    """A text stream whose text goes through ``escape_controls``; everything else is that of the stream behind it."""

    def __init__(self, behind: TextIO) -> None:
        self.behind = behind

    def write(self, text: str) -> int:
        """Write the text; the number of its own characters, as callers count."""
        self.behind.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of them."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def drawing_stream(stream: TextIO) -> TextIO:
    """Return the stream for output that draws with colours or redraws; pass texts through ``escape_controls`` first."""
    return stream.behind if isinstance(stream, ShownStream) else stream


@contextmanager
def show_standard_streams() -> Iterator[None]:
    """Standard output and error as ``ShownStream``s, until the end."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", ShownStream(drawing_stream(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
