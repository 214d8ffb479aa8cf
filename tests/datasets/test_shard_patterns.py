"""Shards that a path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_files import open_dataset, shard

from mt_core import DataError


def test_a_shard_of_the_range_that_is_missing_is_named(tmp_path: Path) -> None:
    for name in ("a-0.tar", "a-2.tar", "{0..1}.tar"):
        (tmp_path / name).write_bytes(shard({"1.txt": name.encode()}))
    with pytest.raises(DataError, match=r"a-1\.tar does not exist"):
        open_dataset("webdataset", path=tmp_path / "a-{0..2}.tar")
    with pytest.raises(DataError, match=r"means 2 files, and dataset\.sha256 and sha1 are of one"):
        open_dataset("webdataset", path=tmp_path / "a-{0,2}.tar", sha1="0" * 40)
    assert open_dataset("webdataset", path=tmp_path / "{0..1}.tar").row(0)["text"] == "{0..1}.tar", (
        "a file of that name"
    )


def test_a_range_of_one_number_stands_for_that_shard(tmp_path: Path) -> None:
    (tmp_path / "a-00.tar").write_bytes(shard({"1.txt": b"one"}))
    assert open_dataset("webdataset", path=tmp_path / "a-{00..00}.tar").row(0)["text"] == "one"
