"""CSV and TSV: records as the ``csv`` module writes them, each with its line."""

from __future__ import annotations

import csv
import io
import pickle
from pathlib import Path

import pytest
from dataset_files import open_dataset, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6), st.sampled_from([("csv", ","), ("tsv", "\t")]))
@settings(max_examples=150, deadline=None)
def test_what_the_csv_module_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], form: tuple[str, str]
) -> None:
    name, delimiter = form
    sink = io.StringIO(newline="")
    csv.writer(sink, delimiter=delimiter).writerows([("prompt", "response"), *rows])
    file = tmp_path_factory.mktemp("any") / f"a.{name}"
    file.write_bytes(sink.getvalue().encode())
    found = rows_of(open_dataset(name, path=file))
    assert [(row["prompt"], row["response"]) for row in found] == rows
    content = sink.getvalue()
    firsts = [1 + content[: content.rindex("\n", 0, place) + 1].count("\n") for place in record_starts(rows, delimiter)]
    assert [row["id"] for row in found] == [f"{file}:{line}" for line in firsts]


def record_starts(rows: list[tuple[str, str]], delimiter: str) -> list[int]:
    """Return where each record begins in the text that the csv module writes: one character behind the record before."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter)
    writer.writerow(("prompt", "response"))
    starts = []
    for row in rows:
        starts.append(sink.tell())
        writer.writerow(row)
    return starts


def test_blank_lines_a_byte_order_mark_and_long_fields_are_no_trouble(tmp_path: Path) -> None:
    file, long = tmp_path / "a.csv", "x" * 300_000
    file.write_bytes(b'\xef\xbb\xbfa,b\r\n\r\n1,"two\r\nlines"\r\n' + f"{long},3".encode())
    assert rows_of(open_dataset("csv", path=file)) == [
        {"id": f"{file}:3", "a": "1", "b": "two\r\nlines"},
        {"id": f"{file}:5", "a": long, "b": "3"},
    ]


def test_a_tab_may_be_written_as_people_type_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\tb\n1\t2\n")
    assert rows_of(open_dataset("csv", path=tmp_path / "a.csv", delimiter="\\t"))[0]["b"] == "2"
    with pytest.raises(ValueError, match=r"';;' is not one ASCII character; give one, such as , ; \| or \\t for a tab"):
        open_dataset("csv", path=tmp_path / "a.csv", delimiter=";;")


def test_every_file_has_its_own_header_or_all_have_the_one_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("b,a\n3,4\n5,6\n")
    found = rows_of(open_dataset("csv", path=tmp_path))
    assert [(row["a"], row["b"]) for row in found] == [("1", "2"), ("4", "3"), ("6", "5")]
    given = rows_of(open_dataset("csv", path=tmp_path / "1.csv", header=("x", "y")))
    assert [(row["x"], row["y"]) for row in given] == [("a", "b"), ("1", "2")]


def test_quotes_mean_nothing_where_there_are_none(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text('a\tb\n"open\t5" disk\n')
    assert rows_of(open_dataset("tsv", path=file, quote=None))[0]["a"] == '"open'


def test_a_dataset_travels_to_another_process(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n2\n")
    dataset = open_dataset("csv", path=file)
    assert pickle.loads(pickle.dumps(dataset)).row(1) == dataset.row(1)
