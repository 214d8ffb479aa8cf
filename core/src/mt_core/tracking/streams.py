"""Consoles that are not UTF-8: what they cannot show is written in ASCII, and ends no command."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper
from typing import Any

HANDLER = "mt_readable"
_SYMBOLS = str.maketrans("·•–─│├└×▁▂▃▄▅▆▇█", "-*--||`x_.,-=+*#") | str.maketrans(
    {
        "…": "...",
        "→": "->",
        "±": "+-",
        "≤": "<=",
        "≥": ">=",
        "«": "<<",
        "»": ">>",
        "²": "^2",
        "³": "^3",
        "ᵀ": "^T",
        "√": "sqrt",
        "‖": "||",
        "⊙": "o",
        "Δ": "delta ",
        "Σ": "sum ",
        "λ": "lambda",
    }
)
"""Symbols of our own messages, as people write them on a typewriter."""


def make_printable(*streams: Any) -> None:
    """Let these streams (standard output and error) write what their encoding lacks in ASCII: our symbols as people write them, any
    other character as Python does (``\\xe9``). Files are not meant: they are UTF-8 everywhere."""
    codecs.register_error(HANDLER, _replace_unencodable)
    for stream in streams or (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a notebook has others
            stream.reconfigure(errors=HANDLER)


def _replace_unencodable(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter, place = error.object[error.start], error.start + 1
    if error.encoding == "ascii" and 0xDC80 <= ord(letter) <= 0xDCFF:
        return bytes([ord(letter) - 0xDC00]), place  # a byte of a path, which Python could not read there
    shown = letter.translate(_SYMBOLS)
    return (shown if shown.isascii() else letter.encode("ascii", "backslashreplace").decode()), place
