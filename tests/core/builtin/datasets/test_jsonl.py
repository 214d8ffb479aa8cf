"""JSON lines: every fault with its file and line, and no file in memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_core.builtin.datasets.jsonl import JsonlConfig, build_jsonl


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


GOOD = b'{"text": "a"}\n'
FAULTS: dict[str, tuple[bytes, str]] = {
    "cut off": (
        b'{"text": "abc',
        r":3: Unterminated string starting at column 10: {\"text\": \"abc Write one complete",
    ),
    "no closing brace": (b'{"text": "abc"', r":3: Expecting ',' delimiter at column 15:"),
    "two objects": (b'{"a": 1} {"b": 2}', r":3: Extra data at column 10:"),
    "single quotes": (b"{'text': 1}", r":3: Expecting property name enclosed in double quotes at column 2:"),
    "trailing comma": (b'{"a": 1,}', r":3: .* at column 8:|:3: .* at column 9:"),
    "plain text": (b"hello", r":3: Expecting value at column 1: hello"),
    "bad escape": (rb'{"a": "\x"}', r":3: Invalid \\escape at column 8:"),
    "control character": (b'{"a": "x\x1b[31m"}', r":3: Invalid control character at column 9: .*x\\x1b\[31m"),
    "array": (b'[{"text": "a"}]', r":3: an object is needed, this is an array: .*jq -c"),
    "string": (b'"text"', r":3: an object is needed, this is a string:"),
    "number": (b"5", r":3: an object is needed, this is a number:"),
    "null": (b"null", r":3: an object is needed, this is null:"),
    "true": (b"true", r":3: an object is needed, this is a boolean:"),
    "duplicate key": (b'{"text": "a", "text": "b"}', r":3: key 'text' stands twice in one object: "),
    "nested duplicate key": (b'{"a": [{"b": 1, "b": 2}]}', r":3: key 'b' stands twice in one object: "),
    "NaN": (b'{"a": NaN}', r":3: NaN is not JSON: "),
    "infinity": (b'{"a": -Infinity}', r":3: -Infinity is not JSON: "),
    "overflow": (b'{"a": 1e999}', r":3: 1e999 is larger than a float can hold: "),
    "endless integer": (b'{"a": ' + b"1" * 5000 + b"}", r":3: an integer with thousands of digits: .*…"),
    "deep": (b"[" * 100_000, r":3: nested too deeply"),
    "high surrogate": (rb'{"a": "\ud83d"}', r":3: a lone surrogate, which is half of a character, at column 8:"),
    "low surrogate": (
        rb'{"\\": "\\ude00\ude00"}',
        r":3: a lone surrogate, which is half of a character, at column 16:",
    ),
    "wrong pair": (rb'{"a": "\ud83d\u0041"}', r":3: a lone surrogate, .* at column 8:"),
    "NUL": (b'{"a": "\0"}', r":3: NUL byte at offset 22\."),
    "hole in the file": (b"\0" * 50, r":3: NUL byte at offset 15\."),
    "latin-1": (b'{"a": "\xe9"}', r":3: byte 0xe9 at offset 22 is not UTF-8"),
    "second byte order mark": (b'\xef\xbb\xbf{"a": 1}', r":3: Unexpected UTF-8 BOM"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_line_is_named_by_file_and_line(fault: str, tmp_path: Path) -> None:
    line, message = FAULTS[fault]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD)
    dataset = open_rows(file)
    assert dataset.row(0)["text"] == dataset.row(2)["text"] == "a"
    with pytest.raises(DataError, match=message) as raised:
        dataset.row(1)
    assert str(raised.value).startswith(f"{file}:3: ")
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


def test_a_whole_character_from_two_escapes_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(rb'{"text": "\ud83d\ude00\\ud83d\u00e9\u0000"}')
    assert rows_of(file)[0]["text"] == "\U0001f600\\ud83dé\0"


SOURCES: dict[str, tuple[Any, str]] = {
    "missing": (lambda path: None, r"/x\.jsonl does not exist\. Set dataset\.path"),
    "empty": (lambda path: path.touch(), r"/x\.jsonl has no rows\. Write one JSON object per line"),
    "blank": (lambda path: path.write_text("\n \n"), r"/x\.jsonl has no rows\."),
    "utf-16": (lambda path: path.write_text("{}", encoding="utf-16"), r"x\.jsonl is UTF-16"),
    "folder without rows": (lambda path: path.mkdir(), r"has no \*\.jsonl or \*\.json file, only nothing"),
    "folder with empty files": (
        lambda path: (
            path.mkdir(),
            (path / "a.jsonl").write_bytes(GOOD),
            (path / "b.jsonl").touch(),
            (path / "c.jsonl").touch(),
        ),
        r"/b\.jsonl has no rows, nor have 1 other files",
    ),
}


@pytest.mark.parametrize("fault", SOURCES)
def test_a_faulty_source_is_named_with_what_to_do(fault: str, tmp_path: Path) -> None:
    make, message = SOURCES[fault]
    make(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=message):
        open_rows(tmp_path / "x.jsonl")


def test_the_file_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.write_text(f'{{"text": "{"x" * 2000}"}}\n' * 5000)
    tracemalloc.start()
    dataset = open_rows(file)
    assert dataset.row(4999)["id"] == f"{file}:5000"
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 * len(dataset) < file.stat().st_size / 10
