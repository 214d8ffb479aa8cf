"""JSON lines: every fault with its file and line, and no file in memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_plugin_standard.datasets.jsonl import JsonlConfig, build_jsonl


def open_rows(path: Path, **options: Any) -> Any:
    return build_jsonl(JsonlConfig(path=str(path), **options), split="train")


def rows_of(path: Path) -> list[dict[str, Any]]:
    dataset = open_rows(path)
    return [dict(dataset.row(index)) for index in range(len(dataset))]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(max_size=8), values, max_size=4), min_size=1, max_size=5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_json_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], escaped: bool
) -> None:
    file = tmp_path_factory.mktemp("any") / "a.jsonl"
    file.write_bytes("\n".join(json.dumps(row, ensure_ascii=escaped) for row in rows).encode())
    expected = [{**row, "id": f"{file}:{line}"} for line, row in enumerate(rows, start=1)]
    assert rows_of(file) == expected


def test_blank_lines_line_ends_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \t\n{"text": "b\xe2\x80\xa8c"}')
    assert rows_of(file) == [{"id": f"{file}:1", "text": "a"}, {"id": f"{file}:4", "text": "b\u2028c"}]


def test_a_folder_is_all_its_files_sorted(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, count in (("c.jsonl", 1), ("b/d.jsonl", 2), ("a.jsonl", 2)):
        (tmp_path / name).write_text("".join(f'{{"text": "{name} {n}"}}\n' for n in range(count)))
    (tmp_path / "readme.md").write_text("no rows")
    texts = [row["text"] for row in rows_of(tmp_path)]
    assert texts == ["a.jsonl 0", "a.jsonl 1", "b/d.jsonl 0", "b/d.jsonl 1", "c.jsonl 0"]


def test_a_whole_character_from_two_escapes_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(rb'{"text": "\ud83d\ude00\\ud83d\u00e9\u0000"}')
    assert rows_of(file)[0]["text"] == "\U0001f600\\ud83dé\0"


def test_the_file_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.write_text(f'{{"text": "{"x" * 2000}"}}\n' * 5000)
    tracemalloc.start()
    dataset = open_rows(file)
    assert dataset.row(4999)["id"] == f"{file}:5000"
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 * len(dataset) < file.stat().st_size / 10
