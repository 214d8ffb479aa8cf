"""Parquet, Arrow and token files against what pyarrow and numpy wrote."""

from __future__ import annotations

import datetime
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import ROWS, arrow, npy, open_dataset, parquet, rows_of

from mt_core import DataError

VALUES = [
    {
        "n": n,
        "x": n / 3,
        "text": f"é 你 {n}",
        "none": None,
        "list": [n] * (n % 3),
        "when": datetime.date(2024, 1, 1 + n),
    }
    for n in range(20)
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_values_come_back_in_any_order_from_several_files(name: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{name}", VALUES[:13])
    write(tmp_path / f"b.{name}", VALUES[13:])
    dataset = open_dataset(name, path=tmp_path)
    ids = [f"{tmp_path}/a.{name}:{n + 1}" for n in range(13)] + [f"{tmp_path}/b.{name}:{n + 1}" for n in range(7)]
    expected = [{**row, "id": place} for row, place in zip(VALUES, ids, strict=True)]
    assert rows_of(dataset) == expected
    assert [dataset.row(index) for index in (19, 0, 14, 2, 12)] == [expected[index] for index in (19, 0, 14, 2, 12)]


def test_every_format_travels_to_another_process_and_through_a_fork(made: tuple[str, Path, dict[str, Any]]) -> None:
    name, path, options = made
    dataset = open_dataset(name, path=path, **options)
    last = dataset.row(len(dataset) - 1)
    assert pickle.loads(pickle.dumps(dataset)).row(len(dataset) - 1) == last
    child = os.fork()
    if not child:
        os._exit(0 if dataset.row(0)["id"] and dataset.row(len(dataset) - 1) == last else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert dataset.row(0) == open_dataset(name, path=path, **options).row(0)


def test_all_formats_of_rows_say_the_same(made: tuple[str, Path, dict[str, Any]]) -> None:
    name, path, options = made
    if name != "tokens":
        found = rows_of(open_dataset(name, path=path, **options))
        assert [{"prompt": row["prompt"], "response": row["response"]} for row in found] == ROWS
        assert len({row["id"] for row in found}) == len(ROWS)


def twice(path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)


FAULTS: dict[str, tuple[str, Any, str]] = {
    "cut off parquet": (
        "parquet",
        lambda path: path.write_bytes(parquet()[:-9]),
        r"is damaged, cut off or of another format",
    ),
    "no parquet": ("parquet", lambda path: path.write_bytes(b"a,b\n1,2\n" * 9), r"of another format"),
    "empty parquet file": ("parquet", lambda path: path.touch(), r"of another format"),
    "parquet without rows": ("parquet", lambda path: pq.write_table(pa.table({"a": []}), path), r"has no rows"),
    "a column twice": ("parquet", twice, r"column 'a' stands twice"),
    "cut off arrow": ("arrow", lambda path: path.write_bytes(arrow("file")[:-30]), r"of another format"),
    "cut off stream": ("arrow", lambda path: path.write_bytes(arrow("stream")[:700]), r"of another format"),
    "no arrow": ("arrow", lambda path: path.write_bytes(b"a,b\n1,2\n" * 9), r"of another format"),
    "empty arrow file": ("arrow", lambda path: path.touch(), r"of another format"),
    "a folder without any": ("arrow", lambda path: path.mkdir(), r"has no \*\.arrow file"),
    "missing": ("parquet", lambda path: None, r"does not exist\. Set dataset\.path"),
    "cut off npy": (
        "tokens",
        lambda path: path.with_suffix(".npy").write_bytes(npy()[:-3]),
        r"cannot be read as token ids",
    ),
    "floats": ("tokens", lambda path: np.save(path.with_suffix(".npy"), np.zeros(3)), r"holds float64 in 1 dim"),
    "objects": (
        "tokens",
        lambda path: np.save(path.with_suffix(".npy"), np.array([{}])),
        r"cannot be read as token ids",
    ),
    "a matrix": ("tokens", lambda path: np.save(path.with_suffix(".npy"), np.zeros((2, 2), int)), r"in 2 dimensions"),
    "no tokens": ("tokens", lambda path: np.save(path.with_suffix(".npy"), np.zeros(0, int)), r"has no tokens"),
    "half a token": (
        "tokens",
        lambda path: path.with_suffix(".bin").write_bytes(b"123"),
        r"dataset\.dtype \(now uint16\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_named_with_what_to_do(fault: str, tmp_path: Path) -> None:
    name, make, message = FAULTS[fault]
    make(tmp_path / f"x.{name}")
    path = next(iter(tmp_path.glob("x.*")), tmp_path / f"x.{name}")
    with pytest.raises(DataError, match=message) as raised:
        rows_of(open_dataset(name, path=path))
    assert str(path) in str(raised.value)


def test_text_that_is_not_utf_8_is_told_with_its_row(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet:[12] cannot be read"):
        rows_of(open_dataset("parquet", path=tmp_path / "a.parquet"))


def test_offsets_that_lead_nowhere_are_found_before_they_are_followed(tmp_path: Path) -> None:
    table, path = pa.table({"text": ["abc", "def"]}), tmp_path / "a.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    right, wrong = (np.array([0, 3, end], "<i4").tobytes() for end in (6, 1 << 30))
    assert path.read_bytes().count(right) == 1
    path.write_bytes(path.read_bytes().replace(right, wrong))
    with pytest.raises(DataError, match=r"a\.arrow:1 cannot be read; it is damaged"):
        open_dataset("arrow", path=tmp_path / "a.arrow").row(0)


def test_what_was_read_does_not_travel(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [{"text": f"{n}" * 9999} for n in range(9)])
    dataset = open_dataset("parquet", path=tmp_path / "a.parquet")
    dataset.row(0)
    assert len(pickle.dumps(dataset)) < 2000


def test_tokens_are_cut_behind_each_end_and_none_is_lost(tmp_path: Path) -> None:
    ids = np.array([5, 6, 0, 7, 0, 0, 8], np.uint32)
    ids.astype("<u4").tofile(tmp_path / "a.bin")
    cut = rows_of(open_dataset("tokens", path=tmp_path / "a.bin", dtype="uint32", end_id=0))
    assert [row["input_ids"] for row in cut] == [[5, 6, 0], [7, 0], [0], [8]]
    assert [row["id"].rpartition(":")[2] for row in cut] == ["1", "2", "3", "4"]
    assert [row["input_ids"] for row in rows_of(open_dataset("tokens", path=tmp_path / "a.bin", dtype="uint32"))] == [
        ids.tolist()
    ]
    np.save(tmp_path / "ends.npy", np.array([2, 7]))
    given = open_dataset("tokens", path=tmp_path / "a.bin", dtype="uint32", ends=tmp_path / "ends.npy")
    assert [row["input_ids"] for row in rows_of(given)] == [[5, 6], [0, 7, 0, 0, 8]]


@pytest.mark.parametrize("ends", [[], [0, 7], [3, 3, 7], [2, 6], [7, 8]])
def test_ends_that_do_not_divide_the_tokens_are_refused(ends: list[int], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(7))
    np.save(tmp_path / "ends.npy", np.array(ends, np.int64))
    with pytest.raises(DataError, match=r"ends\.npy does not divide a\.npy: .* from above 0 to 7"):
        open_dataset("tokens", path=tmp_path / "a.npy", ends=tmp_path / "ends.npy")
