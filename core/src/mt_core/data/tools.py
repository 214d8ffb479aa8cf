"""Tools in conversations, as OpenAI's API has them: what may be called, and the calls of the assistant.

https://platform.openai.com/docs/guides/function-calling. The older ``function_call``, and that of ShareGPT, become calls too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mt_core.errors import DataError
from mt_core.protocols import Row

_CALL = '{"name": "f", "arguments": {"x": 1}}'


def shorten(value: Any) -> str:
    """A value as Python writes it, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def tools_of(row: Row) -> list[Any]:
    """The tools of a row, as objects or as JSON text of them; none is an empty list. Raises ``DataError`` for anything else."""
    value = _parse(row.get("tools") or [])
    value = [_parse(tool) for tool in value] if isinstance(value, list) else None
    if value is None or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(
            f"{row['id']}: field 'tools' is no list of objects, nor JSON text of one: {shorten(row['tools'])}. Write it so, or rename "
            "it where it means something else: --data.columns '{other: tools}'."
        )
    return value


def calls_of(turn: Mapping[str, Any], place: str) -> list[Any]:
    """The calls of a turn: ``tool_calls``, or the one ``function_call``. Raises ``DataError`` for what is no call."""
    value = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if not isinstance(value, list):
        raise DataError(f'{place} has "tool_calls": {shorten(value)}; it is a list of calls such as {_CALL}.')
    return [_call(each, f"{place}, call {number}") for number, each in enumerate(value, 1)]


def parse_calls(text: Any, place: str) -> list[Any]:
    """The calls in ShareGPT's turn of the role ``function_call``: JSON text of one, or of a list of them."""
    value = _parse(text)
    return calls_of({"tool_calls": value if isinstance(value, list) else [value]}, place)


def _call(value: Any, place: str) -> dict[str, Any]:
    """The call with its arguments as an object, as chat templates expect them: text they would write in quotes."""
    call = {key: each for key, each in value.items() if each is not None} if isinstance(value, Mapping) else {}
    inner = call.get("function", call)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise DataError(f"{place} has no name of a function: {shorten(value)}. Write it as {_CALL}.")
    arguments = _parse(inner.get("arguments") or {})
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{place} has arguments that are no object, nor JSON text of one: {shorten(inner['arguments'])}. Write {_CALL}."
        )
    inner = {**inner, "arguments": arguments}
    return {**call, "function": inner} if "function" in call else inner


def _parse(value: Any) -> Any:
    """JSON text as what it says; anything else, and text that is no JSON, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def texts_in(value: Any) -> list[str]:
    """Every text in a value as JSON has it, names of fields too."""
    if isinstance(value, str):
        return [value]
    found: list[str] = []
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for each in value if isinstance(value, list | tuple) else ():
        if type(each) is str:
            found.append(each)
        elif each is not None:
            found += texts_in(each)
    return found


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(key, change): with_texts(each, change) for key, each in value.items()}
    return [with_texts(each, change) for each in value] if isinstance(value, list | tuple) else value
