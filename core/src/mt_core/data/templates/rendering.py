"""Jinja chat templates as transformers renders them, in its sandbox
(https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from mt_core.data.templates.turnwise import MARK, mark_turns
from mt_core.errors import DataError
from mt_core.protocols import Message

_FILE = "<template>"
"""What Jinja calls a template that came as a text."""

_LONGEST = 300
"""Characters of an error, into which a template may write what a turn says."""

_SAID = frozenset({"role", "content", "reasoning_content", "input", "name", "tool_call_id", "tool_calls"})
"""What a template sees of a message."""


def render(
    source: str, messages: Sequence[Message], names: Mapping[str, str], *, name: str, speak: bool = False
) -> str:
    """The text of a conversation; ``speak`` adds what comes before the assistant's turn.

    ``names`` are the special tokens (``bos_token`` …). Raises ``DataError`` with the line where the template objects or is broken.
    """
    return "".join(_pieces(_compiled, source, messages, names, name=name, speak=speak))


def render_turns(
    source: str, messages: Sequence[Message], names: Mapping[str, str], *, name: str, speak: bool = False
) -> list[str]:
    """What ``render`` gives, in parts: what comes before the first turn, each turn, and what comes after them.

    For templates of which ``least_messages`` knows that they write one turn after another.
    """
    return "".join(_pieces(_turnwise, source, messages, names, name=name, speak=speak)).split(MARK)


def least_messages(source: str) -> int | None:
    """How many messages the beginning of a conversation has to have so that ``render_turns`` shows it; ``None`` where it never does."""
    least: int | None = _turnwise(source).least_messages
    return least


def _pieces(
    compiled: Callable[[str], Any],
    source: str,
    messages: Sequence[Message],
    names: Mapping[str, str],
    *,
    name: str,
    speak: bool,
) -> list[str]:
    said = [
        message if message.keys() <= _SAID else {key: message[key] for key in _SAID if key in message}
        for message in messages
    ]
    try:
        template, tools = compiled(source), messages[0].get("tools") if messages else None
        found = {"messages": said, "tools": tools, "documents": None, "add_generation_prompt": speak}
        context = template.new_context({**template.globals, **found, **names}, shared=True)
        try:
            return list(template.root_render_func(context))  # render() without its copies of what it is given
        except Exception:
            template.environment.handle_exception()  # raises it, with the template's lines
            raise
    except Exception as error:  # a template is somebody's code, and may raise what it wants
        raise DataError(
            f"the chat template {name}{_line(error)} {_problem(error)}, or choose another with --data.template"
        ) from error


def _problem(error: Exception) -> str:
    """What a template says itself (``raise_exception``) is about the conversation; anything else is its own fault."""
    from jinja2 import TemplateError

    reason = (str(error) or type(error).__name__)[:_LONGEST].rstrip(".")
    if type(error) is TemplateError:
        return f"refuses this conversation: {reason}. See which roles and order it allows"
    return f"fails: {reason}. Mend it"


@cache
def _compiled(source: str) -> Any:
    """The template in transformers' sandbox. ``render_jinja_template`` around it makes plain data of rich objects; ours is plain."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its imports half a second

    return _own_globals(_compile_jinja_template(source))


@cache
def _turnwise(source: str) -> Any:
    """The template with marks between turns, where it writes one after another (``least_messages``)."""
    template = _compiled(source)
    tree = template.environment.parse(source)
    least = mark_turns(tree) if MARK not in source else None
    marked = _own_globals(template.environment.from_string(tree if least else source))
    marked.least_messages = least
    return marked


def _own_globals(template: Any) -> Any:
    template.globals = dict(template.globals)  # Jinja's ChainMap is copied, slowly, each time that a text is rendered
    return template


def _line(error: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    number = lines[-1] if lines else getattr(error, "lineno", None)
    return f", line {number}," if number else ""
