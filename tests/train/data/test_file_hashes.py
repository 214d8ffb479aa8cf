"""A file is hashed once, until it changes or nobody asks for its hash any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mt_tools.cli.data import main
from mt_train.data.file_hashes import MEMORY, file_hash


def test_the_hash_of_a_file_is_remembered_until_it_changes(tmp_path: Path) -> None:
    path, memory = tmp_path / "data", tmp_path / "memory"
    path.write_bytes(b"one")
    file_hash(path, memory)
    assert not memory.exists(), "a file that has just changed may change again"
    os.utime(path, (1, 1))
    first = file_hash(path, memory)
    kept = next(memory.iterdir())
    kept.write_text("0" * 64)
    assert file_hash(path, memory) == "0" * 64
    path.write_bytes(b"two")
    assert file_hash(path, memory) not in (first, "0" * 64)


def test_hashes_of_files_that_are_gone_or_not_used_for_long_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "cache"
    for name in ("kept é\udcff.txt", "gone.txt", "unused.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8", errors="surrogateescape")
        os.utime(tmp_path / name, (1, 1))
        file_hash(tmp_path / name, root / MEMORY)
        for path in (root / MEMORY).iterdir():
            os.utime(path, (1, 1))
    (tmp_path / "gone.txt").unlink()
    kept = file_hash(tmp_path / "kept é\udcff.txt", root / MEMORY)
    file_hash_of_none = root / MEMORY / "notes.txt"
    file_hash_of_none.write_text("mine")
    assert main(["clean", "--data.cache", str(root)]) == 0
    assert len(list((root / MEMORY).iterdir())) == 4
    assert main(["clean", "--data.cache", str(root), "--yes"]) == 0
    assert "removed 2 of 3 remembered hashes" in capsys.readouterr().out
    assert file_hash_of_none.exists()
    (one,) = [path for path in (root / MEMORY).iterdir() if path != file_hash_of_none]
    assert one.read_text().startswith(kept)
