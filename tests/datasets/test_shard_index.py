"""Indexes of shards: which members are a sample, and an index that is kept is that of the shard as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dataset_files import open_dataset, rows_of, shard

from mt_core import DataError
from mt_plugin_datasets import shard_index
from mt_plugin_datasets.shard_index import load_index, split_name


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shard that nobody has changed for a while, and an empty cache."""
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "a.tar", shard({"1.txt": b"one", "2.txt": b"two"}))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))
    return path


def count_made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made, make = list[Path](), shard_index._make
    monkeypatch.setattr(shard_index, "_make", lambda path: [made.append(path), make(path)][1])
    return made


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/b.c.JPG", ("a/b", "c.jpg")),
        ("./0001.txt", ("./0001", "txt")),
        ("a.b/c.txt", ("a.b/c", "txt")),
        ("README", ("", "")),
        ("a/.hidden", ("", "")),
        ("a.", ("a", "")),
    ],
)
def test_a_name_is_divided_at_its_first_dot(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


def test_samples_are_consecutive_members_of_one_name(path: Path) -> None:
    members = {"a.txt": b"1", "a.json": b'{"n": 1}', "LICENSE": b"", "b.txt": b"2", "x/a.txt": b"3", "a.cls": b"4"}
    rows = rows_of(open_dataset("webdataset", path=write(path, shard(members))))
    assert [(row["__key__"], len(row)) for row in rows] == [("a", 4), ("b", 3), ("x/a", 3), ("a", 3)]


def test_an_index_is_made_once_and_anew_when_the_shard_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_made(monkeypatch)
    assert [row["text"] for row in rows_of(open_dataset("webdataset", path=path))] == ["one", "two"]
    assert [row["text"] for row in rows_of(open_dataset("webdataset", path=path))] == ["one", "two"]
    assert len(made) == 1
    write(path, shard({"2.txt": b"new", "3.txt": b"row"}))  # of the same size and time
    assert [row["text"] for row in rows_of(open_dataset("webdataset", path=path))] == ["new", "row"]
    assert len(made) == 2


def test_an_index_that_is_damaged_is_made_anew(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, made = rows_of(open_dataset("webdataset", path=path)), count_made(monkeypatch)
    (saved,) = (tmp_path / "cache/shards").iterdir()
    content = saved.read_bytes()
    places = range(0, len(content), 7)
    for place in places:
        saved.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        assert rows_of(open_dataset("webdataset", path=path)) == rows
    saved.write_bytes(content[:100])
    assert rows_of(open_dataset("webdataset", path=path)) == rows
    assert len(made) == len(places) + 1


def test_a_shard_that_may_still_change_and_a_cache_that_is_not_writable_keep_no_index(
    path: Path, tmp_path: Path
) -> None:
    os.utime(path)
    assert load_index(path).samples == 2
    assert not (tmp_path / "cache/shards").exists()
    (tmp_path / "cache").write_text("no folder")
    write(path, path.read_bytes())
    assert len(rows_of(open_dataset("webdataset", path=path))) == 2


def test_a_stream_reads_the_headers_of_a_shard_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(path)  # so that no index is kept
    made = count_made(monkeypatch)
    assert len(list(open_dataset("webdataset", path=path, streaming=True).rows(0, 0))) == 2
    assert len(made) == 1


def test_indexes_that_nobody_uses_are_removed(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache/shards"
    folder.mkdir(parents=True)
    for name in (f"{'0' * 40}.index", f"{'1' * 40}.index", "own.index"):
        write(folder / name, b"")
    os.utime(folder / f"{'1' * 40}.index")
    load_index(path)
    assert {found.name for found in folder.iterdir()} > {f"{'1' * 40}.index", "own.index"}
    assert not (folder / f"{'0' * 40}.index").exists()


def test_a_shard_that_changes_while_it_is_in_use_is_named(path: Path) -> None:
    dataset = open_dataset("webdataset", path=path)
    assert dataset.row(0)["text"] == "one"
    with path.open("r+b") as file:
        file.truncate(1536)
    with pytest.raises(DataError, match=r"a\.tar changed while it was in use"):
        dataset.row(1)


def test_a_shard_that_is_written_over_with_as_many_bytes_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, other = open_dataset("webdataset", path=path), shard({"2.txt": b"new", "3.txt": b"row"})
    assert dataset.row(0)["text"] == "one"
    write(path, other)
    os.utime(path)
    with pytest.raises(DataError, match=r"a\.tar changed while it was in use"):
        dataset.row(1)
    make = shard_index._make
    monkeypatch.setattr(shard_index, "_make", lambda path: [make(path), write(path, b"")][0])
    with pytest.raises(DataError, match=r"a\.tar changed while it was read"):
        load_index(path)
