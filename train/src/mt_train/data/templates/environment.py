"""The sandbox of transformers for conversations in which people spelled special tokens: what it puts together stays ``SpelledText``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any

from mt_train.data.templates.spelled_text import show, spell_out

_OWN = "{{ '' }}"
"""A template that nobody has, so that the environment in which transformers compiles it is ours alone."""


def hear_spellings(tree: Any) -> Any:
    """A template's syntax tree with filters and tests instead of ``~`` and ``in``, which Jinja compiles to what knows ``str`` alone."""
    return _operators()().visit(tree)


@cache
def spelling_environment() -> Any:
    """Such an environment, for the trees that ``hear_spellings`` gives."""
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its imports half a second

    environment = _compile_jinja_template(_OWN).environment
    environment.concat = _join
    environment.filters = {name: _spell_result(each) for name, each in environment.filters.items()}
    environment.filters["mt_joined"] = _join
    environment.tests = {**environment.tests, "mt_within": _is_within}
    return environment


@cache
def _operators() -> Any:
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Operators(NodeTransformer):
        def visit_Concat(self, node: Any) -> Any:  # noqa: N802 (Jinja's name)
            node = self.generic_visit(node)
            parts = nodes.List(node.nodes, lineno=node.lineno)
            return nodes.Filter(parts, "mt_joined", [], [], None, None, lineno=node.lineno)

        def visit_Compare(self, node: Any) -> Any:  # noqa: N802
            node = self.generic_visit(node)
            operand = node.ops[0]
            if len(node.ops) > 1 or operand.op not in ("in", "notin"):
                return node
            test = nodes.Test(node.expr, "mt_within", [operand.expr], [], None, None, lineno=node.lineno)
            return test if operand.op == "in" else nodes.Not(test, lineno=node.lineno)

    return Operators


def _join(parts: Iterable[Any]) -> str:
    return spell_out("".join(map(str, parts)))


def _is_within(value: Any, whole: Any) -> bool:
    if isinstance(value, str) and isinstance(whole, str):
        return show(value) in show(whole)
    return value in whole


def _spell_result(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        found = function(*args, **named)
        return spell_out(found) if isinstance(found, str) else found

    return call
