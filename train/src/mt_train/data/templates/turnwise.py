"""Templates that write one turn after another: a single rendering then shows where each turn begins.

Whether a conversation's beginning is written as the beginning of the conversation follows from the template's syntax tree, where its one
loop over the messages sees nothing behind the message that it is at, and what comes after the loop depends on nothing before it.
Most chat templates are so; for the others each beginning is rendered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "\ufdd4"
"""Stands where a turn begins, and behind the last one: a noncharacter, which no turn may have."""

_SPEAK = "add_generation_prompt"
_OF_THE_PAST = frozenset({"first", "index", "index0"})
"""Attributes of a Jinja loop that do not depend on the items that follow."""


def mark_turns(tree: Any) -> int | None:
    """Put marks into a template's tree; ``None`` where its turns cannot be told apart so.

    Otherwise the fewest messages that have to be there for the beginning of a conversation to be written as such.
    """
    views = _views(tree)
    loop = next((node for node in tree.body if _is_a(node, "For") and _is_view(node.iter, views)), None)
    if loop is None or loop.test is not None or loop.recursive or loop.else_:
        return None
    place = tree.body.index(loop)
    told = _Names(views, loop)
    is_plain = all(map(told.knows_no_more, tree.body)) and next(tree.find_all(_kind("Break")), None) is None
    after = {name.name for node in tree.body[place + 1 :] for name in _names(node)}
    speaks = any(name.name == _SPEAK for node in tree.body[: place + 1] for name in _names(node))
    if not is_plain or speaks or after & (_assigned_names(tree) | {"messages", "tools", "documents", "loop"}):
        return None
    loop.body.insert(0, _mark(loop.lineno))
    tree.body.insert(place + 1, _mark(loop.lineno))
    return 1 + told.most


def _kind(name: str) -> Any:
    from jinja2 import nodes  # with its imports a tenth of a second

    return getattr(nodes, name)


def _is_a(node: Any, name: str) -> bool:
    return isinstance(node, _kind(name))


def _mark(line: int) -> Any:
    return _kind("Output")([_kind("TemplateData")(MARK, lineno=line)], lineno=line)


def _names(node: Any) -> Iterator[Any]:
    if _is_a(node, "Name"):
        yield node
    yield from node.find_all(_kind("Name"))


def _assigned_names(tree: Any) -> set[str]:
    """Names that get a value in the template."""
    return {node.name for node in tree.find_all((_kind("Name"), _kind("Macro"))) if getattr(node, "ctx", "") != "load"}


def _views(tree: Any) -> dict[str, int]:
    """Names of the messages from one of them on, and how many are left out at most."""
    views = {"messages": 0}
    for node in tree.find_all(_kind("Assign")):
        if _is_a(node.target, "Name") and _is_view(node.node, views):
            views[node.target.name] = max(views.get(node.target.name, 0), _count_left_out(node.node, views))
    return views


def _is_view(node: Any, views: dict[str, int]) -> bool:
    """Return whether a value is the messages from one of them on."""
    if _is_a(node, "Name"):
        return node.name in views
    if _is_a(node, "CondExpr"):
        return node.expr2 is not None and _is_view(node.expr1, views) and _is_view(node.expr2, views)
    return _is_a(node, "Getitem") and _start(node.arg) is not None and _is_view(node.node, views)


def _start(node: Any) -> int | None:
    """``1`` of the slice ``[1:]``."""
    if not _is_a(node, "Slice") or node.stop is not None or node.step is not None or not _is_a(node.start, "Const"):
        return None
    value = node.start.value
    return value if type(value) is int and value >= 0 else None


def _count_left_out(node: Any, views: dict[str, int]) -> int:
    slices = node.find_all(_kind("Slice"))
    return sum(_start(each) or 0 for each in slices) + max(views.get(name.name, 0) for name in _names(node))


class _Names:
    """Names by which a template knows the messages: views in the loop and in values of other views, the first one anywhere.

    ``most`` messages are left out of a view whose first one is looked at.
    """

    def __init__(self, views: dict[str, int], loop: Any) -> None:
        self._views, self._loop = views, loop
        self.most = 0

    def knows_no_more(self, node: Any) -> bool:
        if node is self._loop:
            return self._is_plain_view(node.iter) and all(map(self.knows_no_more, [node.target, *node.body]))
        if _is_a(node, "Assign") and _is_view(node.node, self._views):
            return _is_a(node.target, "Name") and self._is_plain_view(node.node)
        if _is_a(node, "Getitem") and _is_a(node.node, "Name") and node.node.name in self._views:
            self.most = max(self.most, self._views[node.node.name])
            return _is_a(node.arg, "Const") and type(node.arg.value) is int and node.arg.value == 0
        if _is_a(node, "Getattr") and _is_a(node.node, "Name") and node.node.name == "loop":
            return node.attr in _OF_THE_PAST
        if _is_a(node, "Name"):
            return node.name not in self._views and node.name != "loop"
        return all(map(self.knows_no_more, node.iter_child_nodes()))

    def _is_plain_view(self, node: Any) -> bool:
        tests = [node.test] if _is_a(node, "CondExpr") else []
        inner = [node.expr1, node.expr2] if tests else [node.node] if _is_a(node, "Getitem") else []
        return all(map(self.knows_no_more, tests)) and all(map(self._is_plain_view, inner))
