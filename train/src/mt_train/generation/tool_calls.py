"""Calls of tools in a text, as chat templates write them. A template whose calls no format here reads back has none.

The formats: https://github.com/NousResearch/Hermes-Function-Calling (``<tool_call>``, Qwen too), Functionary 3.1 (``<function=…>``), and
bare JSON (Llama 3.1 one object, Mistral a list, whose mark is a special token and gives no text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mt_core.errors import DataError
from mt_core.protocols import Template, Tokenizer
from mt_core.rows import Message

_DECODER = json.JSONDecoder()
_PROBE = {"name": "where_is", "arguments": {"place": "Ulm", "depth": 2}}
_FUNCTION = {
    "name": "where_is",
    "description": "",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "depth": {"type": "integer"}}},
}


@dataclass(frozen=True)
class Call:
    """One call: the name of the function, and JSON text of its arguments."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CallFormat:
    """How calls stand in a text. They begin at ``opening``, or at the first character where that is bare JSON."""

    opening: tuple[str, ...]
    bare: bool
    pattern: re.Pattern[str]
    """Text before the JSON of a call, perhaps with its ``name``."""
    closing: str

    def begin(self, text: str) -> int:
        """Return where calls begin, or may begin once more text is there: what is before is content for certain."""
        if self.bare:
            start = text.lstrip()
            return len(text) if start and not start.startswith(self.opening) else 0
        found = [at for opening in self.opening if (at := text.find(opening)) >= 0]
        return min(found) if found else len(text) - _count_begun(text, self.opening)

    def parse(self, text: str) -> tuple[Call, ...]:
        """Return the calls that a text from ``begin`` on is; none where it is anything else."""
        try:
            return tuple(self._calls(text))
        except (ValueError, RecursionError):  # also JSON that is too deep
            return ()

    def _calls(self, text: str) -> Iterator[Call]:
        at = 0
        while text[at:].strip():
            found = self.pattern.match(text, at)
            if found is None:
                raise ValueError("no call begins here")
            value, at = _DECODER.raw_decode(text, found.end())
            yield from _read(value, found.groupdict().get("name"), bare=self.bare)
            rest = re.compile(r"\s*" + re.escape(self.closing)).match(text, at)
            if rest is None:
                raise ValueError("the call does not end")
            at = rest.end()


def _count_begun(text: str, openings: Sequence[str]) -> int:
    """Return how many characters at the end may be the beginning of an opening."""
    longest = max(map(len, openings)) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(opening.startswith(text[-size:]) for opening in openings)), 0)


def _read(value: Any, name: str | None, *, bare: bool) -> Iterator[Call]:
    if name is not None:
        yield _call(name, value)
        return
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            raise ValueError("a call is an object")
        function = each.get("function", each)
        if isinstance(function, str):  # the name alone
            function = {**each, "name": function}
        if not isinstance(function, dict):
            raise ValueError("a function is a name, or an object")
        # an answer may be JSON with a name, too, as of a person; a mark in front says that it is a call
        without: Any = None if bare else {}
        yield _call(function.get("name"), function.get("arguments", function.get("parameters", without)))


def _call(name: Any, arguments: Any) -> Call:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and an object of arguments")
    return Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


CALL_FORMATS = (
    CallFormat(("<tool_call>",), False, re.compile(r"\s*<tool_call>\s*"), "</tool_call>"),
    CallFormat(("<function=",), False, re.compile(r"\s*<function=(?P<name>[^>]+)>\s*"), "</function>"),
    CallFormat(("[TOOL_CALLS]",), False, re.compile(r"\s*\[TOOL_CALLS\]\s*"), ""),
    CallFormat(("{", "["), True, re.compile(r"\s*;?\s*"), ""),
)


@dataclass(frozen=True)
class CallReader:
    """Reads the calls that a template writes. ``end_ids`` end a turn that calls."""

    format: CallFormat
    end_ids: tuple[int, ...]

    def split(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Return what a whole turn says before its calls, and the calls; all of it and none where what follows is no call."""
        begin = self.format.begin(text)
        calls = self.format.parse(text[begin:])
        return (text[:begin], calls) if calls else (text, ())


def find_call_reader(template: Template, tokenizer: Tokenizer) -> CallReader | None:
    """Return what reads back a call that the template has written; ``None`` where nothing does, or it writes none."""
    question: Message = {"role": "user", "content": "Where?", "tools": [{"type": "function", "function": _FUNCTION}]}
    call = {"id": "call00001", "type": "function", "function": _PROBE}
    try:
        encoded = template.encode([question, {"role": "assistant", "content": "", "tool_calls": [call]}])
    except DataError:
        return None
    said = [token for token, trained in zip(encoded.ids, encoded.trained, strict=True) if trained]
    written = tokenizer.decode(said)
    if template.stop_text is not None:
        written = written.partition(template.stop_text)[0]
    wanted = (Call(str(_PROBE["name"]), json.dumps(_PROBE["arguments"])),)
    found = next((each for each in CALL_FORMATS if each.parse(written[each.begin(written) :]) == wanted), None)
    if found is None:
        return None
    return CallReader(found, (said[-1],) if not tokenizer.decode(said[-1:]) else ())
