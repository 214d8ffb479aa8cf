"""Bounds for chat templates, which are programs that came with somebody's tokenizer: steps, time, and the size of what they build.

Jinja's sandbox keeps a template from the machine's files, and not from its time and memory: ``'x' * 10**10``, loops in loops, macros
that call one another, a list that holds a list ten times over. Here every turn of a loop, call, filter, operator and output is a
step, and what would grow beyond a bound is refused before it is built. A bound is a thousand times what a conversation needs.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.visitor import NodeTransformer

MOST_STEPS = 5_000_000
"""Turns of loops, calls, filters, operators and outputs of one rendering."""
MOST_SECONDS = 20.0
MOST_CHARACTERS, MOST_WRITTEN = 100_000_000, 300_000_000
"""Most characters of one text, and of all that a rendering writes and throws away."""
MOST_ITEMS = 1_000_000
MOST_NUMBER = 10_000
"""Largest number that a method of a text, or a filter that repeats something, takes."""
MOST_BITS = 10_000
_SHORT = 1024
"""A text of fewer characters is written without being counted: the turns of loops are, and 5 million of them are no harm."""
_CLOCK = 256
"""Steps between two looks at the clock."""
_OPERATORS = frozenset({"+", "*", "**", "%"})
_REPEATING = frozenset({"batch", "center", "format", "indent", "slice", "tojson", "wordwrap"})
_WIDE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\*|[0-9]{5}|[0-9]*\.(?:\*|[0-9]{5}))|:[^{}]*(?:[0-9]{5}|\{)")
"""In a format of either kind: a width or precision of five digits, or from elsewhere."""


class TemplateLimitError(TemplateError):
    """A template that needs more than ``limits`` allow."""


class _Account(threading.local):
    """Account of what the rendering of this thread has used."""

    steps = written = 0
    deadline = float("inf")

    def begin(self) -> None:
        self.steps = self.written = 0
        self.deadline = time.monotonic() + MOST_SECONDS

    def step(self, value: Any = None, *, written: int = 0) -> None:
        self.steps += 1
        if written or isinstance(value, str):
            self.write(written or len(value))
        if not self.steps % _CLOCK:
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        if self.steps > MOST_STEPS:
            raise TemplateLimitError(f"it takes more than {MOST_STEPS:,} steps")
        if time.monotonic() > self.deadline:
            raise TemplateLimitError(f"it takes more than {MOST_SECONDS:g} seconds")

    def write(self, characters: int) -> None:
        self.written += characters
        if self.written > MOST_WRITTEN:
            raise TemplateLimitError(f"it writes more than {MOST_WRITTEN:,} characters")


_SPENT = _Account()
begin_rendering = _SPENT.begin


def limit_environment(environment: Any) -> Any:
    """An environment like this one, with bounds. Its templates are compiled from ``count_turns`` trees."""
    own = environment.overlay()
    own.globals = {name: value for name, value in environment.globals.items() if name != "lipsum"}
    own.filters = {name: _bound_filter(name, function) for name, function in environment.filters.items()}
    own.filters |= {"mt_tick": _tick, "mt_concat": _concat}
    own.intercepted_binops = _OPERATORS
    own.call_binop = functools.partial(_operate, own.binop_table)
    own.call = functools.partial(_call, environment.call)
    own.finalize = _finalize
    return own


def count_turns(tree: Any) -> Any:
    """A template's tree in which each turn of a loop is counted, and ``~`` is bounded."""
    return _TickInserter().visit(tree)


class _TickInserter(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja's own way to name them
        self.generic_visit(node)
        written = sum(len(data.data) for each in node.body for data in each.find_all(nodes.TemplateData))
        tick = nodes.Filter(nodes.Const(written), "mt_tick", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        listed = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(listed, "mt_concat", [], [], None, None, lineno=node.lineno)


@pass_context  # which keeps the compiler from working it out once and for all
def _tick(context: Any, written: int) -> None:
    _SPENT.step(written=written)


@pass_context
def _concat(context: Any, values: list[Any]) -> str:
    _SPENT.step()
    parts = [str(_weigh_value(value)) for value in values]
    _refuse_long(sum(map(len, parts)))
    return "".join(parts)


def _finalize(value: Any) -> Any:
    """Check the value that is about to be written."""
    if isinstance(value, str) and len(value) < _SHORT:
        return value  # as most
    _SPENT.step(value)
    return _weigh_value(value)


def _operate(table: Mapping[str, Callable[[Any, Any], Any]], context: Any, operator: str, left: Any, right: Any) -> Any:
    if operator == "+" and isinstance(left, str) and isinstance(right, str) and len(left) + len(right) < _SHORT:
        return left + right  # as most
    _SPENT.step()
    if operator == "+":
        _refuse_long(_length(left) + _length(right), left)
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and _is_sized(value):
                _refuse_long(_length(value) * times, value)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        _refuse(bits > MOST_BITS, f"a number of more than {MOST_BITS:,} bits")
    if operator == "%" and isinstance(left, str | bytes):
        _refuse_wide(left)
        _weigh_value(right)
    return table[operator](left, right)


def _call(call: Callable[..., Any], context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
    owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # the sandbox wraps str.format
    if isinstance(owner, str | bytes | int):
        _check_method(owner, getattr(function, "__name__", ""), (*arguments, *named.values()))
    result = call(context, function, *arguments, **named)
    _SPENT.step(result)
    return result


def _check_method(owner: Any, name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, int) and value > MOST_NUMBER:
            raise TemplateLimitError(f"it asks for a number above {MOST_NUMBER:,} for {name}")
        _weigh_value(value)
    if name in ("format", "format_map"):
        _refuse_wide(owner)
    if name == "join" and values and isinstance(values[0], list | tuple | dict):
        _refuse_long(_joined_size(values[0], owner))
    elif name == "replace" and len(values) > 1:
        _refuse_long(_replaced_size(owner, values[0], values[1]))
    elif name in ("expandtabs", "translate"):
        _refuse_long(
            len(owner) * max([8, *(value for value in values if isinstance(value, int)), *map(_length, values)])
        )


def _bound_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its values looked at before; what Jinja passes to it stays what it is (``functools.wraps``)."""
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded_filter(*arguments: Any, **named: Any) -> Any:
        if len(arguments) > passed + 1 or named or not isinstance(arguments[passed], str):
            _SPENT.step()
            value, *others = arguments[passed:] or (None,)
            _check_filter(name, value, [*others, *named.values()])
        return function(*arguments, **named)

    return bounded_filter


def _check_filter(name: str, value: Any, others: list[Any]) -> None:
    if name in _REPEATING:
        for each in others:
            if isinstance(each, int) and each > MOST_NUMBER:
                raise TemplateLimitError(f"it asks for a number above {MOST_NUMBER:,} for {name}")
    for each in (value, *others):
        _weigh_value(each)
    text = value if isinstance(value, str) else ""
    width = max([each if isinstance(each, int) else _length(each) for each in others], default=0)
    if name == "replace" and len(others) > 1:
        _refuse_long(_replaced_size(str(value), others[0], others[1]))
    elif name == "join" and isinstance(value, list | tuple | dict):
        _refuse_long(_joined_size(value, others[0] if others else ""))
    elif name in ("indent", "wordwrap"):
        _refuse_long(len(text) + width * (1 + text.count("\n" if name == "indent" else " ")))
    elif name == "format":
        _refuse_wide(text)
    elif name == "tojson":
        _refuse(width > 100, "an indent above 100")
    elif name == "sum":
        _refuse(any(_is_sized(each) for each in others), "a sum of lists")


def _joined_size(values: Any, between: Any) -> int:
    return sum(_length(each) for each in values) + len(values) * _length(between)


def _replaced_size(text: Any, old: Any, new: Any) -> int:
    if not (isinstance(old, type(text)) and isinstance(new, type(text))):
        return len(text)
    return len(text) + (len(new) * text.count(old) if len(new) > len(old) else 0)


def _weigh_value(value: Any) -> Any:
    """The value, unless it holds more than a text of it may have: a list may hold another one many times over."""
    if isinstance(value, list | tuple | dict):
        left = [MOST_ITEMS]
        _weigh(value, left)
    return value


def _weigh(value: Any, left: list[int]) -> None:
    inner = (each for pair in value.items() for each in pair) if isinstance(value, dict) else iter(value)
    for each in inner:
        left[0] -= 1 + (len(each) // 100 if isinstance(each, str) else 0)
        if left[0] < 0:
            raise TemplateLimitError(f"it asks for a list with more than {MOST_ITEMS:,} values")
        if isinstance(each, list | tuple | dict):
            _weigh(each, left)


def _is_sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _length(value: Any) -> int:
    return len(value) if _is_sized(value) else 0


def _refuse_long(length: int, value: Any = "") -> None:
    if length > MOST_ITEMS and isinstance(value, list | tuple):
        raise TemplateLimitError(f"it asks for a list with more than {MOST_ITEMS:,} values")
    if length > MOST_CHARACTERS:
        raise TemplateLimitError(f"it asks for a text of more than {MOST_CHARACTERS:,} characters")


def _refuse_wide(text: Any) -> None:
    spelled = text.decode("latin-1") if isinstance(text, bytes) else text
    _refuse(_WIDE.search(spelled) is not None, "a width of five digits or more, or from elsewhere, in a format")


def _refuse(is_too_much: bool, what: str) -> None:
    if is_too_much:
        raise TemplateLimitError(f"it asks for {what}")
