"""Messages of a chat, as the run's template takes them. Text alone: no file and no address is ever read for a message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import Message

from .errors import ApiError
from .fields import show

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role of a message → its name in templates."""
KEYS = {
    "system": ("content",),
    "developer": ("content",),
    "user": ("content",),
    "assistant": ("content", "tool_calls", "reasoning_content"),
    "tool": ("content", "tool_call_id", "name"),
}
"""Fields that a message of each role may have, beside its role."""
MOST_MESSAGES = 10_000


def read_messages(value: Any) -> list[Message]:
    """Return the messages. Raises ``ApiError`` that names the first wrong one."""
    if not isinstance(value, list) or not value:
        raise ApiError(f"messages has to be a list of at least one message, got {show(value)}", field="messages")
    if len(value) > MOST_MESSAGES:
        raise ApiError(f"messages has {len(value):,} messages, and takes at most {MOST_MESSAGES:,}", field="messages")
    found = [_read_message(each, f"messages[{place}]") for place, each in enumerate(value)]
    for place, message in enumerate(found[1:], 1):
        if message["role"] == "system":
            raise _fault(f"messages[{place}]", "is a system message, and only the first one can be; move it there")
    return found


def _read_message(value: Any, place: str) -> Message:
    given = value.get("role") if isinstance(value, dict) else None
    if not isinstance(given, str) or given not in ROLES:
        raise _fault(place, f"has to be an object whose role is {', '.join(ROLES)}, got {show(value)}")
    keys = {key: each for key, each in value.items() if each is not None and key != "role"}
    for key in keys:
        if key not in KEYS[given]:
            raise _fault(f"{place}.{key}", f"is nothing that a message of the role {given} has here; leave it out")
    message: dict[str, Any] = {"role": ROLES[given]}
    if keys.get("tool_calls"):
        message["tool_calls"] = _read_calls(keys["tool_calls"], f"{place}.tool_calls")
        message["content"] = _read_content(keys.get("content", ""), f"{place}.content")
    elif "content" not in keys:
        raise _fault(f"{place}.content", "is missing")
    else:
        message["content"] = _read_content(keys["content"], f"{place}.content")
    for key in ("reasoning_content", "tool_call_id", "name"):
        if key in keys:
            if not isinstance(keys[key], str):
                raise _fault(f"{place}.{key}", f"has to be a text, got {show(keys[key])}")
            message[key] = keys[key]
    return message


def _read_content(value: Any, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _fault(place, f"has to be a text, or a list of parts, got {show(value)}")
    return "".join(_read_part(part, f"{place}[{number}]") for number, part in enumerate(value))


def _read_part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and part.keys() <= {"type", "text"} and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind != "text":
        raise _fault(place, f"is of type {show(kind)}, and only text is taken: no file and no address is read here")
    raise _fault(place, f'has to be {{"type": "text", "text": "…"}}, got {show(part)}')


def _read_calls(value: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise _fault(place, f"has to be a list, got {show(value)}")
    return [_read_call(each, f"{place}[{number}]") for number, each in enumerate(value)]


def _read_call(value: Any, place: str) -> dict[str, Any]:
    inner = value.get("function") if isinstance(value, dict) else None
    if (
        not isinstance(inner, dict)
        or value.get("type", "function") != "function"
        or not isinstance(value.get("id"), str)
        or not isinstance(inner.get("name"), str)
        or not value.keys() <= {"id", "type", "function", "index"}
        or not inner.keys() <= {"name", "arguments"}
    ):
        shape = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
        raise _fault(place, f"has to be {shape}, got {show(value)}")
    try:
        arguments = json.loads(inner.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _fault(
            f"{place}.function.arguments", f"has to be JSON text of an object, got {show(inner.get('arguments'))}"
        )
    return {"id": value["id"], "type": "function", "function": {"name": inner["name"], "arguments": arguments}}


def read_tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the functions that may be called. Raises ``ValueError``."""
    if not isinstance(value, list) or len(value) > 128:
        raise ValueError(f"has to be a list of at most 128 functions, got {show(value)}")
    for number, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if (
            not isinstance(function, dict)
            or tool.get("type") != "function"
            or not isinstance(function.get("name"), str)
        ):
            shape = '{"type": "function", "function": {"name": "…", "parameters": {…}}}'
            raise ValueError(f"[{number}] has to be {shape}, got {show(tool)}")
        if function.get("strict"):
            raise ValueError(f"[{number}].function.strict cannot be promised: calls are what the model writes")
    return tuple(value)


def with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the conversation with its tools, which templates find in its first message."""
    first: Message = {**messages[0], "tools": list(tools)}
    return [first, *messages[1:]]


def _fault(place: str, said: str) -> ApiError:
    return ApiError(f"{place} {said}", field=place)
