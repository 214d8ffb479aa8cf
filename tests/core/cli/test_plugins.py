"""The text of ``mt-plugins``: columns, wrapping, and how types and values are written."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt_core.cli.plugins_report import type_words
from mt_core.cli.plugins_text import MIN_WRAPPED, table, yaml_text
from mt_core.groups import Rate

WORDS = st.lists(st.text("abcdef", min_size=1, max_size=9), min_size=1, max_size=30).map(" ".join)


@given(rows=st.lists(st.tuples(st.text("xyz", max_size=8), WORDS), min_size=1, max_size=5), width=st.integers(40, 90))
def test_a_wrapped_table_keeps_every_word_within_the_terminal(rows: list[tuple[str, str]], width: int) -> None:
    lines = list(table(("name", "summary"), rows, width))
    assert all(len(line) <= width for line in lines)
    words = [word for word in " ".join(lines).split() if word.strip("─")]
    assert words == " ".join(["name summary", *(f"{name} {text}" for name, text in rows)]).split()


def test_without_a_terminal_every_row_is_one_line() -> None:
    lines = list(table(("a", "b"), [["x", "word " * 100]]))
    assert len(lines) == 2


def test_where_the_last_column_would_be_a_sliver_lines_stay_whole() -> None:
    lines = list(table(("a", "b"), [["x" * 40, "one two three four five six"]], 40 + MIN_WRAPPED))
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "int"),
        (int | None, "int or none"),
        (Literal["a", "b"], "a | b"),
        (tuple[str, ...], "list of str"),
        (tuple[float, float], "list of float"),
        (dict[str, int], "mapping of str to int"),
        (dict[str, Rate], "mapping of str to {scale, value}"),
        (dict[str, Any], "mapping of str to anything"),
    ],
)
def test_a_type_is_written_as_a_person_would(annotation: Any, words: str) -> None:
    assert type_words(annotation) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        ([], "none"),
        ([1, 2], "1, 2"),
        ("", "''"),
        ("\t", "'\\t'"),
        ({"a": {"b": 1}}, "a {b 1}"),
    ],
)
def test_a_value_is_written_on_one_line(value: Any, text: str) -> None:
    assert yaml_text(value) == text
