"""A file of prompts, checked in full before anything is loaded. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from mt_core.errors import DataError
from mt_core.files import bounded_lines
from mt_core.files.strict_json import parse_json
from mt_train.config.reading import read_small

WRITTEN = ("text", "finish", "tokens")
"""Keys that the output adds to those of a row."""
_SHOWN = 5
_MOST_BYTES = 4 * 10**9
"""Largest file of prompts, in bytes; all of them are kept in memory."""


@dataclass(frozen=True)
class PromptRow:
    """One line of the file. ``content`` is all of it, with the ``id`` that it has or gets (its line number)."""

    line: int
    content: Mapping[str, Any]

    @property
    def id(self) -> str | int:
        """Return the id that an output line is matched by."""
        found: str | int = self.content["id"]
        return found

    @property
    def prompt(self) -> str | list[dict[str, str]]:
        """The text, or the messages."""
        found: str | list[dict[str, str]] = self.content.get("prompt", self.content.get("messages"))
        return found


def read_rows(path: Path) -> list[PromptRow]:
    """The prompts of a file. Raises ``DataError`` that names file and line of the first bad ones, and what is wrong."""
    rows: list[PromptRow] = []
    faults: list[str] = []
    lines_of: dict[str | int, int] = {}
    for line, raw in enumerate(_lines(path), 1):
        if not raw.strip():
            continue
        try:
            row = PromptRow(line, _row(raw, line))
            if row.id in lines_of:
                raise ValueError(f"id {row.id!r} is also that of line {lines_of[row.id]}; every id has to differ")
        except ValueError as error:
            faults.append(f"{path}:{line}: {error}")
            continue
        lines_of[row.id] = line
        rows.append(row)
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise DataError("\n".join([*faults[:_SHOWN], *more]))
    if not rows:
        raise DataError(f'{path} has no line with a prompt; write one {{"prompt": "…"}} a line')
    return rows


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from bounded_lines(BytesIO(read_small(path, most=_MOST_BYTES)), path)
    except OSError as error:
        raise DataError(f"cannot read the prompts {path}: {error.strerror}; check the path") from error


def _row(raw: bytes, line: int) -> dict[str, Any]:
    try:
        content = parse_json(raw.decode("utf-8-sig" if line == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start} of the line); save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(content, dict):
        raise ValueError(f'a line is an object such as {{"prompt": "…"}}, got {shorten(content)}')
    if taken := [key for key in WRITTEN if key in content]:
        raise ValueError(f"has {', '.join(taken)}, which the output writes itself; rename it")
    _check_prompt(content)
    identity = content.get("id", line)
    if type(identity) not in (str, int):
        raise ValueError(f"id must be a text or a whole number, got {shorten(identity)}")
    return {"id": identity, **content}


def _check_prompt(content: Mapping[str, Any]) -> None:
    given = [key for key in ("prompt", "messages") if key in content]
    if len(given) != 1:
        raise ValueError(f"needs prompt or messages, and one of them only; it has {', '.join(content) or 'no key'}")
    value = content[given[0]]
    if given == ["messages"]:
        _check_messages(value)
    elif not isinstance(value, str) or not value:
        raise ValueError(f"prompt must be a text that is not empty, got {shorten(value)}")


def _check_messages(value: Any) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages must be a list of at least one turn, got {shorten(value)}")
    for number, message in enumerate(value, 1):
        fine = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not fine:
            raise ValueError(
                f'turn {number} of messages must be {{"role": "…", "content": "…"}} with texts, got {shorten(message)}'
            )


def shorten(value: Any) -> str:
    """A value as Python writes it, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
