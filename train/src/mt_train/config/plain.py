"""Bounds of a config: plain data, of a size that a person could have written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mt_core.errors import ConfigError, Fault, UsageError, show_value

MOST_VALUES = 200_000
"""A run with a vocabulary of new tokens in its config has this order; a list that holds itself would have no end."""
MOST_LEVELS = 40
MOST_BITS = 64


def check_plain(content: Any, source: str = "the config", most: int = MOST_VALUES) -> None:
    """Raise ``UsageError`` for more values or levels than a person writes, and for what no file could hold.

    What YAML repeats by an alias counts each time: ten lists of ten aliases each are ten thousand million values.
    """
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    count = 0
    while waiting:
        key, value, level = waiting.pop()
        count += 1
        if count > most:
            raise UsageError(f"{source} has more than {most:,} values{_REPEATED}; put rows and long lists into files")
        if level > MOST_LEVELS:
            raise UsageError(
                f"{source} is more than {MOST_LEVELS} levels deep at {key}, or holds itself; write it flatter"
            )
        if isinstance(value, Mapping):
            waiting += [(f"{key}.{name}" if key else str(name), item, level + 1) for name, item in value.items()]
            waiting += [(key, name, level + 1) for name in value if not isinstance(name, str) or _odd_text(name)]
        elif isinstance(value, list | tuple):
            waiting += [(key, item, level + 1) for item in value]
        elif problem := _describe_fault(value):
            raise ConfigError([Fault(key=key.replace("_", "-"), problem=f"{problem}.")])


_REPEATED = " (what an alias repeats counts each time)"


def _describe_fault(value: Any) -> str:
    """Describe the fault of a number or a text, and its remedy; nothing for any other value."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"{show_value(value)} is beyond {MOST_BITS} bits; write a smaller number, or quotes around it where it is text"
    if isinstance(value, float) and not math.isfinite(value):
        return f"a finite number is needed, got {value}; leave the key out, or write none, for no limit"
    return _odd_text(value) if isinstance(value, str) else ""


def _odd_text(text: str) -> str:
    if "\0" in text:
        return f"{show_value(text)} has a NUL character, which no path and no token has; take it out"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{show_value(text)} has half of a character at place {error.start}, which is no UTF-8; write the whole character"
    return ""
