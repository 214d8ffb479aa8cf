"""The dataset of a path: its ending names it, and what is written wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import ConfigError
from mt_train.assemble.discovery import load_plugins
from mt_train.plugins.dataset_slot import MARKED_FOLDERS, READERS, reader_of
from mt_train.plugins.resolve import resolve

HOST = load_plugins()


@pytest.mark.parametrize(
    ("path", "reader"),
    [
        ("a.jsonl", "jsonl"),
        ("A.JSONL", "jsonl"),
        ("a.v2.parquet", "parquet"),
        ("a.txt.gz", "text"),
        ("s3://bucket/part-*.jsonl.zst", "jsonl"),
        ("data/{00000..00127}.tar", "webdataset"),
        ("a.tar.gz", "webdataset"),
        (["a.csv", "b.csv"], "csv"),
        (["a.csv", "b.jsonl"], None),
        ("a.bin", None),
        ("a", None),
        ("", None),
        (None, None),
        (3, None),
        ("x" * 5000 + ".jsonl", "jsonl"),
    ],
)
def test_an_ending_names_the_dataset(path: Any, reader: str | None) -> None:
    assert reader_of({"path": path}) == reader


def test_a_folder_is_read_by_what_lies_in_it(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "LICENSE"):
        (tmp_path / name).write_text("x")
    assert reader_of({"path": str(tmp_path)}) == "text"
    (tmp_path / "c.jsonl").write_text("{}")
    assert reader_of({"path": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("names", "reader"),
    [
        (["dataset_dict.json", "rows.txt"], "hf"),
        (["data-00000-of-00001.arrow", "dataset_info.json", "state.json"], "hf"),
        (["state.json"], "jsonl"),
        (["index.json", "shard.00000.mds.zstd"], "mds"),
        (["index.json", "rows.json"], "jsonl"),
        (["0.tar", "1.tar"], "webdataset"),
        (["README.md", "0.tar"], None),  # which the texts would be: the shards, or what is said of them
        (["rows.jsonl", "pictures.tar"], "jsonl"),  # whose rows name members of the archive
    ],
)
def test_what_libraries_write_is_told_by_the_names_of_its_files(names: list[str], reader: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert reader_of({"path": str(tmp_path)}) == reader


def test_every_reader_is_a_dataset() -> None:
    assert {*READERS.values(), *(reader for _, reader in MARKED_FOLDERS)} <= {
        offer.component.name for offer in HOST.offers("dataset")
    }


def test_a_dataset_that_is_named_reads_any_ending() -> None:
    found = resolve({"model": "llama", "dataset": {"name": "text", "path": "a.jsonl"}}, HOST)
    assert found.config.dataset.name == "text"
    assert resolve({"model": "llama", "dataset": {"path": "a.jsonl"}}, HOST).config.dataset.name == "jsonl"
    assert resolve({"model": "llama"}, HOST).config.dataset.name == "demo"


@pytest.mark.parametrize("path", ["rows.jsnl", ["a.csv", "b.jsonl"], "folder"])
def test_a_path_that_names_no_dataset_is_told_with_the_endings_that_do(path: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "llama", "dataset": {"path": path}}, HOST)
    said = str(caught.value)
    assert f"dataset.path: no dataset follows from {path!r}" in said
    assert ".jsonl" in said
    assert "--dataset NAME" in said
    assert "no such key" not in said


@pytest.mark.parametrize("name", [{}, {"name": "jsonl"}])
def test_files_with_commas_between_them_are_told_how_several_are_given(name: dict[str, str], tmp_path: Path) -> None:
    one, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file in (one, other):
        file.write_text('{"text": "x"}')
    with pytest.raises(ConfigError) as caught:
        resolve({"model": "llama", "dataset": {**name, "path": f"{one},{other}"}}, HOST)
    (fault,) = caught.value.faults
    assert "names 2 files. Several are a folder or a pattern in quotes ('data/*.jsonl')" in str(fault)
    (both := tmp_path / "a.jsonl,b.jsonl").write_text('{"text": "x"}')
    assert resolve({"model": "llama", "dataset": {"path": str(both)}}, HOST).config.dataset.name == "jsonl"
