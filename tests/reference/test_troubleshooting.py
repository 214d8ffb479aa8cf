"""docs/troubleshooting.md: what it says that we say, we say; and nothing that has a name is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mt_core import errors
from mt_core.errors import MtError
from mt_train.data.findings import THRESHOLDS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SOURCES = sorted([*ROOT.glob("*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])
SAID = [
    message
    for head, *rows in (table.splitlines() for table in re.findall(r"^\| it says .*\n(?:\|.*\n)+", TEXT, re.MULTILINE))
    for row in rows[1:]
    for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])
]
"""The messages in the first columns; ``…`` stands for what differs."""
SHORTEST = 4
"""Characters of a part of a message that is looked for."""


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts of a file, those that are put together as one; what is put in between them is ``…``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def said_by_sources() -> str:
    """A line each."""
    found = (text for path in SOURCES for text in texts(ast.parse(path.read_text(encoding="utf-8"))))
    return "\n".join(" ".join(text.split()) for text in found)


@pytest.mark.parametrize("message", SAID)
def test_each_message_on_the_page_is_one_that_the_sources_have(message: str) -> None:
    parts = [part for part in (each.strip(" ,;:") for each in message.split("…")) if len(part) >= SHORTEST]
    assert parts, f"{message} says nothing that could be found"
    assert re.search(".*".join(map(re.escape, parts)), said_by_sources()), f"nobody says: {parts}"


def test_the_page_has_messages() -> None:
    assert len(SAID) > 80


@pytest.mark.parametrize(
    "error",
    sorted(
        {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MtError)},
        key=lambda each: each.__name__,
    ),
)
def test_every_error_has_its_line_with_its_exit_code(error: type[MtError]) -> None:
    row = re.search(rf"^\| `{error.__name__}` \| (\d+) \|", TEXT, re.MULTILINE)
    assert row is not None, f"{error.__name__} is not on the page"
    assert int(row[1]) == error.exit_code


@pytest.mark.parametrize("what", [each.what for each in THRESHOLDS])
def test_every_warning_of_the_report_of_rows_has_its_line(what: str) -> None:
    assert f"| {what} |" in TEXT
