"""Abilities of templates to write tools and reasoning down. One that cannot would lose them without a word, so it is asked before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mt_core.errors import DataError
from mt_core.rows import Message

TOOLS, CALL, RESULT = "declares tools", "calls a tool", "is what a tool gave"
REASONING = 'has "reasoning_content"'
"""Mark of a turn that needs a template with reasoning."""

MESSAGE_KEYS = frozenset({"tools", "tool_calls", "reasoning_content"})
"""Keys of a message that a template reads if it writes tools or reasoning."""

WRITERS = dict.fromkeys((TOOLS, CALL, RESULT), ("functionary", "llama3_1", "mistral_v3", "qwen2_5", "qwen3")) | {
    REASONING: ("deepseek_r1", "qwen3")
}
"""The named templates that write such turns."""

PROBE = "Wollongong"
"""A word that no template writes by itself."""

_QUESTION = {"role": "user", "content": "Where?"}
_ANSWER = {"role": "assistant", "content": "There."}
_FUNCTION = {"name": PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}


def _call_of(name: str) -> Message:
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


PROBES: dict[str, list[Message]] = {
    TOOLS: [{**_QUESTION, "tools": [{"type": "function", "function": _FUNCTION}]}, _ANSWER],
    CALL: [_QUESTION, _call_of(PROBE)],
    REASONING: [_QUESTION, {**_ANSWER, "reasoning_content": PROBE}],
    RESULT: [
        _QUESTION,
        _call_of("where"),
        {"role": "tool", "name": "where", "tool_call_id": "call00001", "content": PROBE},
        _ANSWER,
    ],
}
"""Conversations that show what a template writes: ``PROBE``, where it writes such turns."""


def refuse_tools(messages: Sequence[Message], name: str, writes: Callable[[str], bool]) -> None:
    """Raise ``DataError`` for the first turn that needs what the template does not write."""
    for number, message in enumerate(messages, 1):
        for need in _needs(message) if message["role"] == "tool" or not MESSAGE_KEYS.isdisjoint(message) else ():
            if not writes(need):
                raise DataError(
                    f"turn {number} {need}, and the chat template {name} does not write that down; choose one that does (--data.template"
                    f" {', '.join(WRITERS[need])}, the model's own, or a Jinja file), or take it out of the row"
                )


def _needs(message: Message) -> Iterator[str]:
    if message.get("tools"):
        yield TOOLS
    if message.get("tool_calls"):
        yield CALL
    if message["role"] == "tool":
        yield RESULT
    if message.get("reasoning_content"):
        yield REASONING
