"""One run per folder, on one machine and after a crash."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mt_core.errors import OutputError
from mt_train.checkpoint.folder import open_run_folder
from mt_train.checkpoint.lock import Holder, hold_lock, refuse_lost

CONTESTANT = """
import sys, time
from pathlib import Path
from mt_train.checkpoint.folder import open_run_folder
from mt_core.errors import OutputError
sys.stdin.readline()
try:
    with open_run_folder(Path(sys.argv[1]), resume=True):
        print("won", flush=True)
        sys.stdin.readline()
except OutputError as error:
    print(error, flush=True)
    sys.stdin.readline()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTESTANT, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_several_runs_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(4)]
    for process in processes:
        say(process)
    answers = [hear(process) for process in processes]
    for process in processes:
        process.communicate("\n")
    assert answers.count("won") == 1
    winner = processes[answers.index("won")].pid
    assert all(f"in use by process {winner} on" in answer for answer in answers if answer != "won")


def test_a_killed_run_gives_its_folder_up_and_the_next_one_says_so(tmp_path: Path) -> None:
    first = start(tmp_path)
    say(first)
    assert hear(first) == "won"
    first.kill()
    first.communicate()
    said: list[str] = []
    with open_run_folder(tmp_path, say=said.append):
        pass
    assert len(said) == 1
    assert f"process {first.pid} on" in said[0]
    assert "did not end by itself" in said[0]
    with open_run_folder(tmp_path, say=said.append):
        pass
    assert len(said) == 1, "a run that ended by itself is no news"


def test_a_run_that_failed_ended_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path / ".lock"):
        raise ZeroDivisionError
    with hold_lock(tmp_path / ".lock") as note:
        assert note == ""


def test_two_runs_of_one_process_never_share_a_folder(tmp_path: Path) -> None:
    with open_run_folder(tmp_path):
        with pytest.raises(OutputError, match=f"in use by process {os.getpid()} on"), open_run_folder(tmp_path):
            pass
        with pytest.raises(OutputError, match="in use"), open_run_folder(tmp_path, resume=True):
            pass
    with open_run_folder(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "process 3", "{", "[]", '{"process": "x"}', "\0"])
def test_a_lock_file_that_says_nothing_still_locks(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt_train.checkpoint.lock._PATIENCE_SECONDS", 0.1)
    path = tmp_path / ".lock"
    path.write_text(text)
    with hold_lock(path) as note:
        assert note == ""
        path.write_text(text)
        with pytest.raises(OutputError, match="in use by another process"), hold_lock(path):
            pass


def test_a_lock_that_is_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match=r"has links where a run writes: \.lock"), open_run_folder(run):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem such as Lustre without its lock option."""

    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_of_the_filesystem_a_run_goes_on_and_says_so(tmp_path: Path) -> None:
    with hold_lock(tmp_path / ".lock") as note:
        assert "has no locks (Function not implemented)" in note


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_holder_that_lives_is_still_respected(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    parent = replace(Holder.this(), process=os.getppid())
    path.write_text(json.dumps(asdict(parent)))
    with pytest.raises(OutputError, match=f"in use by process {os.getppid()}"), hold_lock(path):
        pass
    for stale in (
        replace(parent, boot="another boot"),
        replace(parent, host="elsewhere"),
        replace(parent, process=2**22),
    ):
        path.write_text(json.dumps(asdict(stale)))
        with hold_lock(path) as note:
            assert f"{stale} used" in note


def test_a_folder_that_is_removed_moved_or_replaced_while_it_is_held_is_noticed(tmp_path: Path) -> None:
    lock = tmp_path / "run" / ".lock"
    lock.parent.mkdir()
    with hold_lock(lock):
        refuse_lost(lock)
        lock.parent.rename(tmp_path / "moved")
        with pytest.raises(OutputError, match="it was removed or moved while it was in use"):
            refuse_lost(lock)
        lock.parent.mkdir()
        with pytest.raises(OutputError, match="it was removed or moved"):
            refuse_lost(lock)
        lock.write_text(json.dumps(asdict(replace(Holder.this(), process=1))))
        with pytest.raises(OutputError, match="there is another one in its place"):
            refuse_lost(lock)
        lock.parent.joinpath(".lock").unlink()
        lock.parent.rmdir()
        lock.parent.write_text("a file")
        with pytest.raises(OutputError, match="it was removed or moved"):
            refuse_lost(lock)


def test_a_lock_file_that_cannot_be_read_or_names_nobody_proves_nothing(tmp_path: Path) -> None:
    refuse_lost(tmp_path)  # a folder: it cannot be read
    (tmp_path / ".lock").write_text("")
    refuse_lost(tmp_path / ".lock")
