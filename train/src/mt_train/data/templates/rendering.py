"""Jinja chat templates as transformers renders them, in its sandbox
(https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from mt_core.errors import DataError
from mt_core.rows import Message
from mt_train.data.templates.environment import hear_spellings, spelling_environment
from mt_train.data.templates.spelled_text import SpelledText
from mt_train.data.templates.turnwise import MARK, mark_turns
from mt_train.data.texts import texts_in

_FILE = "<template>"
"""Name that Jinja gives a template that came as a text."""

_LONGEST = 300
"""Characters of an error, into which a template may write what a turn says."""

_SAID = frozenset({"role", "content", "reasoning_content", "input", "name", "tool_call_id", "tool_calls"})
"""Fields of a message that a template sees."""


def render(
    source: str, messages: Sequence[Message], names: Mapping[str, Any], *, name: str, speak: bool = False
) -> str:
    """The text of a conversation; ``speak`` adds what comes before the assistant's turn.

    ``names`` are the special tokens (``bos_token`` …) and functions. Raises ``DataError`` with the line where the template objects or
    is broken.
    """
    return "".join(pieces(compile_template, source, messages, names, name=name, speak=speak))


def render_turns(
    source: str, messages: Sequence[Message], names: Mapping[str, Any], *, name: str, speak: bool = False
) -> list[str]:
    """Render in parts: what comes before the first turn, each turn, and what comes after them.

    For templates of which ``least_messages`` knows that they write one turn after another.
    """
    return "".join(pieces(_turnwise, source, messages, names, name=name, speak=speak)).split(MARK)


def least_messages(source: str) -> int | None:
    """Return how many messages the beginning of a conversation has to have for ``render_turns`` to show it; ``None`` where none does."""
    least: int | None = _turnwise(source, False).least_messages
    return least


def pieces(
    compile_source: Callable[[str, bool], Any],
    source: str,
    messages: Sequence[Message],
    names: Mapping[str, Any],
    *,
    name: str,
    speak: bool = False,
    more: Callable[[Sequence[Any]], Mapping[str, Any]] = lambda said: {},
    into: list[str] | None = None,
) -> list[str]:
    """The parts of a text one after another, as the template writes them.

    ``more`` gives it names beside the usual, and gets its messages; parts are put ``into`` a list as they come.
    """
    from mt_train.data.templates.limits import begin_rendering  # with Jinja a tenth of a second

    said = [_as_seen(message) for message in messages]
    parts = [] if into is None else into
    try:
        template, tools = (
            compile_source(source, _has_spellings(messages)),
            messages[0].get("tools") if messages else None,
        )
        found = {"messages": said, "tools": tools, "documents": None, "add_generation_prompt": speak}
        context = template.new_context({**template.globals, **found, **names, **more(said)}, shared=True)
        begin_rendering()
        try:
            for part in template.root_render_func(context):  # render() without its copies of what it is given
                parts.append(part)
            return parts
        except Exception:
            template.environment.handle_exception()  # raises it, with the template's lines
            raise
    except Exception as error:  # a template is somebody's code, and may raise what it wants
        raise DataError(
            f"the chat template {name}{_line(error)} {_problem(error)}, or choose another with --data.template"
        ) from error


def _as_seen(message: Message) -> Mapping[str, Any]:
    """Return a message as a template sees it, which is as in transformers.

    Thoughts have a second name for templates that know them by it. A call without words has no content: many a template would write
    ``None`` for one that is null, or fail.
    """
    seen = message
    if message.get("content") is None or not message.keys() <= _SAID:
        seen = {key: value for key, value in message.items() if key in _SAID and value is not None}
    return {"thinking": seen["reasoning_content"], **seen} if seen.get("reasoning_content") is not None else seen


def _problem(error: Exception) -> str:
    """Describe a fault: what a template says itself (``raise_exception``) is about the conversation; anything else is its own fault."""
    from jinja2 import TemplateError

    reason = (str(error) or type(error).__name__)[:_LONGEST].rstrip(".")
    if type(error) is TemplateError:
        return f"refuses this conversation: {reason}. See which roles and order it allows"
    return f"fails: {reason}. Mend it"


def _has_spellings(messages: Sequence[Message]) -> bool:
    return any(type(text) is SpelledText for message in messages for text in texts_in(message))


@cache
def compile_template(source: str, spellings: bool = False) -> Any:
    """The template in transformers' sandbox. ``render_jinja_template`` around it makes plain data of rich objects; ours is plain."""
    return compile_tree(environment_of(spellings).parse(source), spellings)


@cache
def _turnwise(source: str, spellings: bool = False) -> Any:
    """The template with marks between turns, where it writes one after another (``least_messages``)."""
    environment = environment_of(spellings)
    tree = environment.parse(source)
    least = mark_turns(tree) if MARK not in source else None
    marked = compile_tree(tree if least else environment.parse(source), spellings)
    marked.least_messages = least
    return marked


@cache
def environment_of(spellings: bool) -> Any:
    """Jinja's environment as transformers sets it up, with bounds; that for conversations with ``SpelledText``, too."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its imports half a second

    from mt_train.data.templates.limits import limit_environment

    return limit_environment(spelling_environment() if spellings else _compile_jinja_template("").environment)


def compile_tree(tree: Any, spellings: bool) -> Any:
    """The template of a syntax tree that ``environment_of`` has parsed, with its steps counted."""
    from mt_train.data.templates.limits import count_turns

    tree = count_turns(hear_spellings(tree) if spellings else tree)
    return copy_globals(environment_of(spellings).from_string(tree))


def copy_globals(template: Any) -> Any:
    """Return the same template, with its globals in one dictionary."""
    template.globals = dict(template.globals)  # Jinja's ChainMap is copied, slowly, each time that a text is rendered
    return template


def _line(error: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    number = lines[-1] if lines else getattr(error, "lineno", None)
    return f", line {number}," if number else ""
