"""The turns of a conversation as rows write them: OpenAI's ``role`` and ``content``, or ShareGPT's ``from`` and ``value``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mt_core.data.media_parts import media_parts
from mt_core.data.tools import calls_of, parse_calls
from mt_core.errors import DataError, show_value
from mt_core.rows import Message

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "developer": "system",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Name of a role in rows → its name here."""

_SPELLINGS = (("role", "content"), ("from", "value"))
_CALL = "function_call"
"""ShareGPT's role of a turn that is nothing but a call."""

_PLAIN = frozenset(ROLES) - {_CALL}

_NAMES = ("name", "tool_call_id")
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of rows for the assistant's thoughts, as transformers takes them: the first that there is."""
_TRAIN_KEYS = ("train_detail", "train", "training", "loss")
"""Keys of rows that say whether a turn is trained on: ours, axolotl's ``training`` and ms-swift's ``loss``. axolotl's
``train_detail`` divides a turn, which nothing here does, so that it is refused."""


def turns(value: Any, place: str) -> list[Message]:
    """The messages in a list of turns, checked. ``place`` (row and field) begins the message of a ``DataError``."""
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{place} must be a list of at least one turn, got {show_value(value, 60)}. "
            'Write [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}].'
        )
    found = [_turn(item, f"{place}, turn {number}") for number, item in enumerate(value, 1)]
    for number, message in enumerate(found[1:], 2):
        if message["role"] == "system":
            raise DataError(
                f"{place}, turn {number} is a system message; only the first turn can be one. Move it there."
            )
    return found


def pairs(value: Any, place: str) -> list[Message]:
    """The messages of earlier turns: a list of [user, assistant] pairs, or of turns; ``None`` and ``[]`` are none."""
    if value is None or value == []:
        return []
    if not isinstance(value, list) or not all(isinstance(item, list | tuple) for item in value):
        return turns(value, place)
    found: list[Message] = []
    for number, pair in enumerate(value, 1):
        if len(pair) != 2:
            raise DataError(
                f"{place}, pair {number} has {len(pair)} texts, not [user, assistant]: {show_value(pair, 60)}."
            )
        for role, text in zip(("user", "assistant"), pair, strict=True):
            found.append({"role": role, "content": content(text, f"{place}, pair {number}, {role}")})
    return found


def content(value: Any, place: str) -> str:
    """Return the text of a turn. Raises ``DataError`` for anything but text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part(part, f"{place}, part {number}") for number, part in enumerate(value, 1))
    raise DataError(
        f"{place} is of type {type(value).__name__}, not text: {show_value(value, 60)}. Write it as a string."
    )


def is_number(value: Any) -> bool:
    """Return whether this is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    what = f"of type {show_value(kind, 60)}" if kind is not None else f"no part of a message: {show_value(part, 60)}"
    raise DataError(
        f'{place} is {what}, and only text can be trained on: {{"type": "text", "text": "…"}}. Take it out, or drop the row.'
    )


def _turn(item: Any, place: str) -> Message:
    if type(item) is dict and len(item) == 2:  # as most are
        said, value = item.get("role"), item.get("content")
        if type(said) is str and said in _PLAIN and type(value) is str:
            return {"role": ROLES[said], "content": value}
    spelling = next((pair for pair in _SPELLINGS if isinstance(item, Mapping) and item.get(pair[0]) is not None), None)
    calls = calls_of(item, place) if spelling else []
    if spelling is None or (spelling[1] not in item and not calls):
        raise DataError(
            f'{place} must have "role" and "content" (or "from" and "value"), got {show_value(item, 60)}. Add what is missing.'
        )
    said, value = item[spelling[0]], item.get(spelling[1])
    role = ROLES.get(str(said))
    if role is None:
        raise DataError(
            f"{place} has the {spelling[0]} {show_value(said, 60)}. Known: {', '.join(ROLES)}. Rename it, or drop the row."
        )
    if said == _CALL:
        calls, value = parse_calls(value, place), None
    if calls and role != "assistant":
        raise DataError(f"{place} calls a tool, which only the assistant does. Give it that role, or drop the row.")
    text = None if calls and value is None else content(value, place)
    names: dict[str, Any] = {name: item[name] for name in _NAMES if isinstance(item.get(name), str)}
    key = next((key for key in _THOUGHTS if item.get(key)), None)
    if key is not None:
        names["reasoning_content"] = content(item[key], f'{place}, "{key}"')
    if calls:
        names["tool_calls"] = calls
    if media := media_parts(item):
        names["media"] = media
    return {"role": role, "content": text, **names, **_wishes(item, place)}


def _wishes(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return ``train`` and ``weight``, where the turn has them. A weight of 0 is ``train: false``, as at OpenAI."""
    wishes: dict[str, Any] = {}
    key = next((key for key in _TRAIN_KEYS if item.get(key) not in (None, [])), None)
    weight = item.get("weight")
    if key is not None:
        train = item[key]
        if not isinstance(train, bool):
            raise DataError(
                f'{place} has "{key}": {show_value(train, 60)}; it is true or false, for the whole turn. Write'
                ' "train": true or false, or rename the key where it means something else.'
            )
        wishes["train"] = train
    if weight is not None:
        if not is_number(weight) or not (0 <= weight < math.inf):
            raise DataError(f'{place} has "weight": {show_value(weight, 60)}; it is a number of 0 or more.')
        wishes |= {"weight": float(weight)} if weight else {"train": False}
    return wishes
