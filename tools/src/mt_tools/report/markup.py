"""HTML that cannot be broken by the text in it: what is not markup already is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from typing import Any

from mt_core.config.secrets import redact, redact_values


class Markup(str):
    """Text that is HTML; every other text is escaped before it becomes part of one."""

    __slots__ = ()


_VOID = frozenset({"img"})


def _escape(text: str) -> str:
    """Text as HTML. A page is shown to others; what is secret goes before it is written otherwise than anywhere else."""
    return html.escape(redact(text))


def element(name: str, *children: str, **attributes: str | bool) -> Markup:
    """``<name attributes>children</name>``. An attribute's ``_`` is written ``-``, a trailing one is dropped.

    An element that has no children in HTML, such as ``img``, has no end either.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escape(str(value))}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Markup(f"<{name}{written}>" + ("" if name in _VOID else f"{join(*children)}</{name}>"))


def join(*children: str) -> Markup:
    """Concatenate pieces of HTML."""
    return Markup("".join(child if isinstance(child, Markup) else _escape(child) for child in children))


def json_script(content: Any, identifier: str) -> Markup:
    """Data for the page's script. No ``<`` is left in it, so that no text in it can end the element."""
    text = json.dumps(redact_values(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="{identifier}">{text}</script>')


def _cells(kind: str, texts: list[str], numbers: int, **more: str) -> Iterator[Markup]:
    for place, text in enumerate(texts):
        yield element(kind, text, class_="number" if place < numbers else "text", **more)


def table(head: list[str], rows: list[list[str]], *, numbers: int = 0) -> Markup:
    """Return a table that scrolls if it is wider than the page.

    The first cell of a row names it; so many after that are numbers, the others texts.
    """
    first, *others = head
    top = [element("th", first, scope="col"), *_cells("th", others, numbers, scope="col")]
    body = [element("tr", element("th", name, scope="row"), *_cells("td", cells, numbers)) for name, *cells in rows]
    whole = element("table", element("thead", element("tr", *top)), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=f"table: {first}")
