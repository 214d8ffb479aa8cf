"""What of the token cache is removed: what nobody has used for long, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from mt_core import Sample
from mt_tools.cli.data import main
from mt_train.data import cache_pruning as leftovers_module
from mt_train.data.cache import TokenCache
from mt_train.data.cache_index import META
from mt_train.data.cache_pruning import find_stale_keys
from mt_train.data.encoding import Rules
from mt_train.data.locks import claim, hold_lock, lock_of
from mt_train.data.samples import EncodedSamples

OLD, NEW, HALF = "a" * 40, "b" * 40, "c" * 40
DAY = 86_400


class Rows:
    """Three rows, of which the last one may be bad."""

    def __len__(self) -> int:
        return 3

    def row(self, index: int) -> dict[str, Any]:
        return {"id": str(index)}


class Numbers:
    """An objective."""

    def encode(self, row: Any) -> Sample:
        if row["id"] == "2" and self.fails:
            raise KeyboardInterrupt
        return Sample([1, 2, 3], [True] * 3, row["id"])

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails


def make_set(root: Path, key: str, *, fails: bool = False) -> EncodedSamples:
    cache = TokenCache(root, 1, print, lambda: nullcontext(lambda done, total: None))
    return cache.samples(key, lambda: (Rows(), range(3)), Numbers(fails), Rules(max_len=9, truncation="error"))


def age(root: Path, key: str, days: float) -> None:
    when = time.time() - days * DAY
    for path in (root, *root.rglob("*")):
        if key in str(path):
            os.utime(path, (when, when))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with rows that were used 40 days ago, rows that were made just now, and half of some, 31 days old."""
    for key in (OLD, NEW):
        make_set(tmp_path, key)
    with pytest.raises(KeyboardInterrupt):
        make_set(tmp_path, HALF, fails=True)
    (tmp_path / f"{HALF}.building" / "chunk-000000.npz").write_bytes(b"half")
    age(tmp_path, OLD, 40)
    age(tmp_path, HALF, 31)
    return tmp_path


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def clean(root: Path, *words: str) -> int:
    return main(["clean", "--data.cache", str(root), *words])


def test_clean_shows_what_was_not_used_for_long_and_removes_it_when_told(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(root)
    assert clean(root) == 0
    said = capsys.readouterr().out
    assert f"40.0 days  {OLD}\n" in said
    assert f"31.0 days  {HALF}  never finished\n" in said
    assert NEW not in said
    assert "would remove 2 sets of rows" in said
    assert names(root) == before
    assert clean(root, "--older-than", "35", "--yes") == 0
    assert names(root) == {name for name in before if OLD not in name}
    assert clean(root, "--yes") == 0
    assert names(root) == {NEW, f"{NEW}.lock"}
    assert re.search(r"removed 1 set of rows \(\d+ bytes\)", capsys.readouterr().out)
    assert len(make_set(root, OLD)) == 3, "what was removed is made again"


def test_rows_that_are_used_again_are_no_longer_old(root: Path) -> None:
    make_set(root, OLD)
    idle = {each.folder.name: each.idle_seconds for each in find_stale_keys(root)}
    assert idle[OLD] < DAY
    assert idle[HALF] > 30 * DAY


def test_rows_that_a_process_uses_or_makes_stay(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = make_set(root, OLD)
    age(root, OLD, 40)
    with hold_lock(lock_of(root / HALF), print):
        assert clean(root, "--yes") == 0
        said = capsys.readouterr()
        assert "removed 0 sets of rows" in said.out
        assert f"{OLD} is in use and stays" in said.err
        assert f"{HALF} is in use and stays" in said.err
        assert [each.remove() for each in find_stale_keys(root)] == [False, False, True], (
            "the last one was made and is not used"
        )
    assert samples[2].ids.tolist() == [1, 2, 3]
    del samples
    assert clean(root, "--yes") == 0
    assert names(root) == set()


@pytest.mark.parametrize("foreign", ["folder", "file", "link", "chunk", "lock"])
def test_what_no_token_cache_holds_stays_with_all_around_it(root: Path, tmp_path: Path, foreign: str) -> None:
    key, elsewhere = "d" * 40, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / META).write_text("mine")
    if foreign == "link":
        (root / key).symlink_to(elsewhere)
    else:
        (root / f"{key}.building").mkdir()
        (root / key).mkdir()
        place = {"folder": f"{key}/more/{META}", "file": f"{key}/notes.txt", "chunk": f"{key}.building/notes.npz"}
        path = root / place.get(foreign, f"{key}.lock")
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (root / "notes.txt").write_text("mine")
    before = names(root)
    assert clean(root, "--older-than", "0", "--yes") == 0
    assert names(root) == {name for name in before if name[0] not in "abc"}
    assert (elsewhere / META).read_text() == "mine"


def test_rows_that_another_process_removes_meanwhile_are_passed_over(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = leftovers_module._below

    def removed(folder: Path) -> Any:
        if folder.name == OLD:
            shutil.rmtree(folder)
            next(os.scandir(folder))
        return below(folder)

    monkeypatch.setattr(leftovers_module, "_below", removed)
    assert [each.folder.name for each in find_stale_keys(root)] == [HALF, NEW]


def test_half_removed_rows_are_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        find_stale_keys(root)[0].remove()
    monkeypatch.undo()
    assert (root / OLD).is_dir()
    assert len(make_set(root, OLD)) == 3


def test_a_lock_that_was_removed_while_it_was_opened_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "key.lock", fcntl.flock

    def removed(handle: int, how: int) -> None:
        monkeypatch.undo()
        path.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", removed)
    assert claim(path) is None
    handle = claim(path)
    assert handle is not None
    assert claim(path) is None
    os.close(handle)


def test_what_cannot_be_is_one_message(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, message in {
        ("--older-than", "-1"): "--older-than takes a number of days, 0 or more, got '-1'",
        ("--data.workers", "2"): "mt-data clean reads --data.cache only, got --data.workers; leave it out",
        ("--json",): "--json belongs to mt-data inspect; leave it out",
    }.items():
        assert clean(root, *words) == 2
        assert message in capsys.readouterr().err
    assert clean(tmp_path / "nowhere") == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["build", "--yes"]) == 2
    assert "--yes belongs to mt-data clean" in capsys.readouterr().err


def test_a_folder_that_may_not_be_removed_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    assert clean(root, "--yes") == 1
    said = capsys.readouterr().err
    assert f"{OLD}/{META} cannot be removed: Permission denied. Run it as who owns the folder" in said
    assert said.count("\n") == 1


def test_a_cache_that_is_not_there_has_nothing_to_remove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "nothing"))
    assert main(["clean", "--yes"]) == 0
    assert "0 sets of rows" in capsys.readouterr().out
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"dataset": {"name": "jsonl"}, "data": {"cache": str(tmp_path)}}))
    assert main(["clean", "--config", str(run)]) == 0
    assert f"token cache {tmp_path}:" in capsys.readouterr().out
