"""Tools in conversations, as OpenAI's API has them: what may be called, and the calls of the assistant.

https://platform.openai.com/docs/guides/function-calling. The older ``function_call``, and that of ShareGPT, become calls too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mt_core.errors import DataError, show_value
from mt_core.rows import Row

_CALL = '{"name": "f", "arguments": {"x": 1}}'


def tools_of(row: Row) -> list[Any]:
    """The tools of a row, as objects or as JSON text of them; none is an empty list. Raises ``DataError`` for anything else.

    OpenAI's older ``functions``, which go with ``function_call``, are tools of the type ``function``.
    """
    name = "tools" if row.get("tools") else "functions"
    value = _parse(row.get(name) or [])
    value = [_parse(tool) for tool in value] if isinstance(value, list) else None
    if value is None or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(
            f"{row['id']}: field {name!r} is no list of objects, nor JSON text of one: {show_value(row[name], 60)}. Write it so, or"
            f" rename it where it means something else: --data.columns '{{other: {name}}}'."
        )
    return value if name == "tools" else [{"type": "function", "function": function} for function in value]


def calls_of(turn: Mapping[str, Any], place: str) -> list[Any]:
    """The calls of a turn: ``tool_calls``, or the one ``function_call``. Raises ``DataError`` for what is no call."""
    value = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if not isinstance(value, list):
        raise DataError(f'{place} has "tool_calls": {show_value(value, 60)}; it is a list of calls such as {_CALL}.')
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
        raise DataError(f"{place} has no name of a function: {show_value(value, 60)}. Write it as {_CALL}.")
    arguments = _parse(inner.get("arguments") or {})
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{place} has arguments that are no object, nor JSON text of one: {show_value(inner['arguments'], 60)}. Write {_CALL}."
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
