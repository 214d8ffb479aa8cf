"""A file of prompts, checked in full before anything is loaded. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from mt_core.data.media_parts import media_of
from mt_core.data.tools import calls_of, tools_of
from mt_core.errors import DataError
from mt_core.files import bounded_lines
from mt_core.files.strict_json import parse_json
from mt_core.rows import Message, Row
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
        raise ValueError(
            f'not JSON: {error.msg} at column {error.colno}; write an object such as {{"prompt": "…"}} on each line'
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f'a line is an object such as {{"prompt": "…"}}, got {shorten(content)}')
    _check_prompt(content)
    if taken := [key for key in WRITTEN if key in content]:
        raise ValueError(f"has {', '.join(taken)}, which the output writes itself; rename it")
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
        prompt_turns({"id": None, **content})
    elif not isinstance(value, str) or not value:
        raise ValueError(f"prompt must be a text that is not empty, got {shorten(value)}")
    elif beside := [name for name in ("system", "tools") if content.get(name)]:
        raise ValueError(
            f"{' and '.join(beside)} beside prompt, a plain text that goes to the model as it is; write messages in its place, or leave"
            f" {'it' if len(beside) == 1 else 'them'} out"
        )


def _check_messages(value: Any) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages must be a list of at least one turn, got {shorten(value)}")
    for number, message in enumerate(value, 1):
        fine = isinstance(message, dict) and isinstance(message.get("role"), str)
        if fine and message.get("content") is None and message.get("tool_calls"):
            continue  # as OpenAI writes a turn that only calls tools
        fine = fine and isinstance(message.get("content"), str)
        if not fine:
            raise ValueError(
                f'turn {number} of messages must be {{"role": "…", "content": "…"}} with texts, got {shorten(message)}'
            )


def prompt_turns(row: Row) -> list[Message]:
    """Return the messages of a row, with its ``system`` message in front and its ``tools``, as a row of training has them.

    Tools and arguments of calls may be JSON text. Raises ``ValueError``.
    """
    messages, system = [_with_calls(*each) for each in enumerate(row["messages"], 1)], row.get("system")
    if not isinstance(system, str | None):
        raise ValueError(f"system must be a text, got {shorten(system)}")
    if system and messages[0]["role"] == "system":
        raise ValueError("messages begins with a system message, and system is another; keep one of them")
    if system:
        messages.insert(0, {"role": "system", "content": system, **media_of(row, "system")})
    try:
        tools = tools_of(row)
    except DataError as error:
        raise ValueError(
            f"tools must be a list of objects, or JSON text of one, got {shorten(row['tools'])}; rename it where it means something else"
        ) from error
    return [{**messages[0], "tools": tools}, *messages[1:]] if tools else messages


def _with_calls(number: int, message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    try:
        return {"content": None, **message, "tool_calls": calls_of(message, f"turn {number} of messages")}
    except DataError as error:
        raise ValueError(str(error)) from error


def shorten(value: Any) -> str:
    """A value as Python writes it, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
