"""Temporary copies go with their process, however it ends."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from mt_core.files import decompressed_path
from mt_core.files.scratch import scratch_file, scratch_folder

COPIES = """
import os, sys
from pathlib import Path
from mt_core.files import decompressed_path
from mt_core.files.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "config.yaml").write_text("x")
    path = decompressed_path(Path(sys.argv[1]))
    if "fork" in sys.argv and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print(path, flush=True)  # the fork is there
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def packed_file(tmp_path: Path) -> Path:
    with gzip.open(tmp_path / "rows.jsonl.gz", "wb") as file:
        file.write(b'{"text": "a"}\n' * 1000)
    return tmp_path / "rows.jsonl.gz"


def start(packed: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made copies and waits for its standard input to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", COPIES, str(packed), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_kill_leaves_behind_goes_with_the_next_use_and_what_lives_stays(folder: Path, packed_file: Path) -> None:
    precious = {folder / name for name in ("mt-scratch-notes", "mt-scratch-abcdefg", "mt-rows", "other")}
    for path in precious:
        path.write_text("precious")
    (folder / "mt-scratch-abcdefgh-link").symlink_to(folder / "other")
    killed, left = start(packed_file)
    living, used = start(packed_file)
    parent, forked = start(packed_file, "fork")
    try:
        assert len(list(folder.iterdir())) == len(precious) + 1 + 6
        for process in (killed, parent):
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert (
            left.read_bytes() == used.read_bytes() == forked.read_bytes() == gzip.decompress(packed_file.read_bytes())
        )
        own = decompressed_path(packed_file)
        assert not left.exists(), "its process is gone"
        assert used.exists(), "its process lives"
        assert forked.exists(), "a fork of its process lives"
        assert own.exists()
        assert decompressed_path(packed_file).exists()
        assert own.exists(), "an own one is no leftover"
        assert precious < set(folder.iterdir())
        living.communicate()
        assert not used.exists(), "removed by its own process at its end"
    finally:
        for process in (killed, living, parent):
            process.kill()
            process.communicate()


def test_a_folder_is_removed_with_what_is_in_it(folder: Path) -> None:
    with suppress(KeyError), scratch_folder() as path:
        (path / "deep").mkdir()
        raise KeyError
    assert not path.exists()
    assert not list(folder.iterdir())


def test_a_file_system_without_locks_is_used_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*given: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = scratch_file("rows")
    assert path.name.endswith("-rows")
    assert path.stat().st_mode & 0o777 == 0o600, "rows may be private"
    scratch_file("rows")
    assert path.exists()
    os.unlink(path)


def test_what_another_process_sweeps_away_before_it_is_locked_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tempfile.mkdtemp
    names: list[str] = []

    def swept(**given: str) -> str:
        names.append(made(**given))
        if len(names) == 1:
            os.rmdir(names[0])
        return names[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with scratch_folder() as path:
        assert str(path) == names[1]
        assert path.is_dir()
