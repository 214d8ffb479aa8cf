"""Tracing of turns in a rendered conversation, for templates that write a turn differently when more follow.

Two renderings more show it: one with a mark wherever a loop over the messages comes to one, and the ``{% generation %}`` blocks of
transformers, where a template has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mt_core.rows import Message
from mt_train.data.templates.notation import SAID
from mt_train.data.templates.rendering import compile_template, compile_tree, environment_of, pieces
from mt_train.data.templates.spelled_text import show
from mt_train.data.templates.turnwise import MARK
from mt_train.data.texts import with_texts

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_OTHER = "\ufdd0"
"""Stands behind what is said in turns that are not trained on: a noncharacter, which no turn may have."""

_MARKS = re.compile(f"{MARK}(?P<turn>[0-9]+){MARK}|{_OTHER}")
_TURN = "mt_turn"


@dataclass(frozen=True)
class Turns:
    """Places in a text: where turns begin, in the order of the text, and where one that is not trained on says something."""

    begins: list[tuple[int, int]]
    others: list[int]
    end: int

    def region(self, turn: int) -> tuple[int, int] | None:
        """Characters of a turn, where they are its own alone."""
        places = [at for at, (_, each) in enumerate(self.begins) if each == turn]
        if not places:
            return None
        after = [start for start, each in self.begins[places[-1] :] if each != turn]
        start, end = self.begins[places[-1]][0], after[0] if after else self.end
        return None if any(start < each <= end for each in self.others) else (start, end)


def trace_turns(
    source: str,
    messages: Sequence[Message],
    names: Mapping[str, Any],
    text: str,
    *,
    name: str,
    trained: Collection[int],
) -> Turns | None:
    """The turns in the text of a conversation; ``None`` where the template writes another text when it is watched."""
    watched = [{**message} if at in trained else _with_mark(message) for at, message in enumerate(messages)]
    marked = "".join(pieces(_compile_traced, source, watched, names, name=name, more=_watch))
    begins, others, parts, done, length = [], [], [], 0, 0
    for found in _MARKS.finditer(marked):
        parts.append(marked[done : found.start()])
        length, done = length + found.start() - done, found.end()
        if found["turn"]:
            begins.append((length, int(found["turn"])))
        else:
            others.append(length)
    parts.append(marked[done:])
    return Turns(begins, others, len(text)) if show("".join(parts)) == show(text) else None


def _with_mark(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        return {**message}
    end = len(content.rstrip())
    return {**message, "content": content[:end] + _OTHER + content[end:]}


def _watch(said: Sequence[Any]) -> Mapping[str, Any]:
    known = {id(message): at for at, message in enumerate(said)}
    return {_TURN: lambda value: f"{MARK}{known[id(value)]}{MARK}" if id(value) in known else ""}


@cache
def _compile_traced(source: str, spellings: bool) -> Any:
    """The template with a mark wherever a loop begins with a message."""
    from jinja2 import nodes

    environment = environment_of(spellings)
    tree = environment.parse(source)
    for loop in list(tree.find_all(nodes.For)):
        if isinstance(loop.target, nodes.Name):
            call = nodes.Call(nodes.Name(_TURN, "load"), [nodes.Name(loop.target.name, "load")], [], None, None)
            loop.body.insert(0, nodes.Output([call]))
    tree.set_environment(environment)
    for node in tree.find_all(nodes.Node):
        node.lineno = getattr(node, "lineno", None) or 1
    return compile_tree(tree, spellings)


def has_generation_blocks(source: str) -> bool:
    """Return whether a template says itself what the assistant generates."""
    return _GENERATION.search(source) is not None


def generated_spans(
    source: str, messages: Sequence[Message], names: Mapping[str, Any], *, name: str
) -> list[tuple[int, int]]:
    """The characters that the template's ``{% generation %}`` blocks wrote, as ``return_assistant_tokens_mask`` has them.

    Rendered from what was said as plain text, which gives as many characters.
    """
    plain = [
        {**message, **with_texts({key: message[key] for key in message if key in SAID}, show)} for message in messages
    ]
    blocks: list[str] = []
    found: list[tuple[int, int]] = []

    template = compile_template(source)
    tracker = next(each for each in template.environment.extensions.values() if hasattr(each, "activate_tracker"))
    with tracker.activate_tracker(blocks, found):
        pieces(compile_template, source, plain, names, name=name, into=blocks)
    return found
