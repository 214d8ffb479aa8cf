"""Locks of folders that processes read together."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from mt_plugin_datasets import file_cache
from mt_plugin_datasets.file_cache import hold_folder, lock, remove_folder


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "_HELD", {})


def test_who_waited_for_the_lock_of_a_removed_folder_holds_the_one_that_others_find(tmp_path: Path) -> None:
    folder, path = tmp_path / "rows", tmp_path / "rows.lock"
    with lock(path):
        reader = threading.Thread(target=hold_folder, args=[folder])
        reader.start()
        while not folder.is_dir():
            time.sleep(0.001)
        time.sleep(0.05)  # it waits for the lock
        shutil.rmtree(folder)
        path.unlink()
    reader.join(10)
    assert folder.is_dir()
    assert not remove_folder(folder), "a second process finds that it is read"
    os.close(file_cache._HELD.pop(folder))
    assert remove_folder(folder)
    assert [*tmp_path.iterdir()] == []


def test_the_lock_of_a_folder_that_is_gone_is_removed(tmp_path: Path) -> None:
    (tmp_path / "rows.lock").touch()
    assert remove_folder(tmp_path / "rows")
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_just_being_made_is_the_last_to_go(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    (tmp_path / "old.lock").touch()
    assert sorted([tmp_path / "new", tmp_path / "old"], key=file_cache._last_use) == [
        tmp_path / "old",
        tmp_path / "new",
    ]
