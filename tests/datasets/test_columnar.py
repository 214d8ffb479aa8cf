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
from dataset_files import CALLS, CALLS_READ, ROWS, open_dataset, rows_of

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


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_file_that_is_gone_is_not_told_to_be_damaged(name: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{name}", VALUES)
    dataset = open_dataset(name, path=tmp_path)
    (tmp_path / f"a.{name}").unlink()
    with pytest.raises(DataError, match=rf"a\.{name}:4 cannot be read: No such file or directory\. Check the path"):
        dataset.row(3)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_objects_have_no_keys_of_other_rows(name: str, tmp_path: Path) -> None:
    write(tmp_path / f"a.{name}", CALLS)
    found = rows_of(open_dataset(name, path=tmp_path))
    assert [{key: row[key] for key in CALLS[0]} for row in found] == CALLS_READ


def test_every_format_travels_to_another_process_and_through_a_fork(
    dataset_case: tuple[str, Path, dict[str, Any]],
) -> None:
    name, path, options = dataset_case
    dataset = open_dataset(name, path=path, **options)
    last = dataset.row(len(dataset) - 1)
    assert pickle.loads(pickle.dumps(dataset)).row(len(dataset) - 1) == last
    child = os.fork()
    if not child:
        os._exit(0 if dataset.row(0)["id"] and dataset.row(len(dataset) - 1) == last else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert dataset.row(0) == open_dataset(name, path=path, **options).row(0)


def test_all_formats_of_rows_say_the_same(dataset_case: tuple[str, Path, dict[str, Any]]) -> None:
    name, path, options = dataset_case
    if name != "tokens":
        found = rows_of(open_dataset(name, path=path, **options))
        assert [{"prompt": row["prompt"], "response": row["response"]} for row in found] == ROWS
        assert len({row["id"] for row in found}) == len(ROWS)


def test_offsets_that_lead_nowhere_are_found_before_they_are_followed(tmp_path: Path) -> None:
    table, path = pa.table({"text": ["abc", "def"]}), tmp_path / "a.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    right, wrong = (np.array([0, 3, end], "<i4").tobytes() for end in (6, 1 << 30))
    assert path.read_bytes().count(right) == 1
    path.write_bytes(path.read_bytes().replace(right, wrong))
    dataset = open_dataset("arrow", path=tmp_path / "a.arrow")
    with pytest.raises(DataError, match=r"a\.arrow:2 cannot be read; it is damaged"):
        dataset.row(1)
    assert dataset.row(0)["text"] == "abc"


def test_what_was_read_does_not_travel(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [{"text": f"{n}" * 9999} for n in range(9)])
    dataset = open_dataset("parquet", path=tmp_path / "a.parquet")
    dataset.row(0)
    assert len(pickle.dumps(dataset)) < 2000


@pytest.mark.parametrize("name", ["a.bin.gz", "a.npz", "a.parquet", "a.BIN.ZST"])
def test_bytes_of_other_files_are_not_taken_for_ids(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"12345678")
    with pytest.raises(DataError, match=f"{name} holds no bare ids by its ending.* Decompress it to .npy or .bin"):
        open_dataset("tokens", path=tmp_path / name)


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
