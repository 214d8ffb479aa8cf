"""The demo corpus."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import pytest

from mt_core import DataError


def test_each_help_topic_is_one_document_in_order_of_name(build: Any) -> None:
    demo = build("dataset", "demo", split="train")
    rows = [demo.row(index) for index in range(len(demo))]
    assert {row["id"]: row["text"] for row in rows} == {
        f"pydoc_data.topics:{name}": text for name, text in topics.items()
    }
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert 300_000 < sum(len(row["text"]) for row in rows) < 700_000


def test_the_order_is_that_of_the_names_in_any_python(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydoc_data.topics.topics", {"b": "two", "empty": " \n", "a": "one"})
    demo = build("dataset", "demo", split="train")
    assert [demo.row(index)["text"] for index in range(len(demo))] == ["one", "two"]


def test_the_core_cuts_the_held_out_part(build: Any) -> None:
    assert build("dataset", "demo", split="eval") is None


def test_a_python_without_its_help_says_what_to_do(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="--dataset text"):
        build("dataset", "demo", split="train")
