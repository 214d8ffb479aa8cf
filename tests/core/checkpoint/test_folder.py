"""A run's folder belongs to one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core.checkpoint.folder import next_run_folder, opened
from mt_core.checkpoint.store import CheckpointStore, Keep, find
from mt_core.errors import OutputError


def leave_a_run(folder: Path) -> None:
    """What a finished run leaves."""
    with opened(folder):
        for name in ("run.yaml", "plugins.lock.json", "metrics.jsonl", "loss.png", "completed"):
            (folder / name).write_text("old")
        for name in ("logs/rank-0.log", "tensorboard/events.out.tfevents.1.host.2.0"):
            (folder / name).parent.mkdir()
            (folder / name).write_text("old")
        CheckpointStore(folder).save(1, write=lambda staging: [], manifest={}, keep=Keep(last=1))


def test_a_folder_that_is_not_empty_is_refused_unless_resumed_or_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leave_a_run(folder)
    with pytest.raises(OutputError, match=r"--resume .* --overwrite"), opened(folder):
        pass
    with opened(folder, resume=True):
        assert (folder / "metrics.jsonl").exists()
    with opened(folder, overwrite=True):
        assert [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "name",
    ["thesis.tex", "checkpoints/notes.txt", "logs/mine.log", "tensorboard/x", "checkpoints/step-00000002/x", "old"],
)
def test_overwriting_never_deletes_what_no_run_wrote(tmp_path: Path, name: str) -> None:
    leave_a_run(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    with (
        pytest.raises(OutputError, match=r"no run wrote .*" + name.removesuffix("/x")),
        opened(tmp_path, overwrite=True),
    ):
        pass
    assert (tmp_path / name).read_text() == "precious"
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_folder_that_only_looks_like_a_runs_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("of another program")
    with pytest.raises(OutputError, match=r"replaces a run, and .* is none"), opened(tmp_path, overwrite=True):
        pass
    assert (tmp_path / "logs" / "rank-0.log").exists()
    assert not (tmp_path / ".lock").exists()


def test_overwriting_never_follows_a_link(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    leave_a_run(run)
    (run / "checkpoints").rename(disk)
    (run / "checkpoints").symlink_to(disk)
    with opened(run, overwrite=True):
        assert not (run / "checkpoints").is_symlink()
    assert (disk / "latest").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OutputError, match="is a file"), opened(tmp_path / "run"):
        pass
    with pytest.raises(OutputError, match="cannot be written"), opened(tmp_path / "run" / "below"):
        pass


@pytest.mark.parametrize("call", ["write_text", "rename", "mkdir", "unlink"])
def test_a_folder_that_cannot_be_written_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, call, refuse)
    with (
        pytest.raises(OutputError, match=r"cannot be written: Read-only file system; choose"),
        opened(tmp_path / "run"),
    ):
        pytest.fail("it was opened")


def test_an_error_of_the_run_itself_is_not_one_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), opened(tmp_path):
        raise FileNotFoundError


def test_a_new_folder_holds_nothing_but_its_lock(tmp_path: Path) -> None:
    with opened(tmp_path / "deep" / "run") as folder:
        assert [path.name for path in folder.iterdir()] == [".lock"]


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    assert next_run_folder("llama-tiny", tmp_path).name == "llama-tiny-001"
    for name in ("llama-tiny-001", "llama-tiny-007", "llama-tiny-old", "llama-tiny-²", "llama-tiny-x-900", "gemma-800"):
        (tmp_path / name).mkdir()
    assert next_run_folder("llama-tiny", tmp_path).name == "llama-tiny-008"
    assert next_run_folder("llama-tiny", tmp_path / "none").name == "llama-tiny-001"


def test_a_run_that_has_saved_meanwhile_is_not_started_anew(tmp_path: Path) -> None:
    """``--resume auto`` looks before it has the lock: another run may have come, saved and gone."""
    run = tmp_path / "run"
    with opened(run):
        (run / "run.yaml").write_text("")
    with opened(run, anew=True):
        assert not (run / "run.yaml").exists()
        (run / "run.yaml").write_text("")
        CheckpointStore(run).save(1, write=lambda staging: [], manifest={}, keep=Keep(last=1))
    with pytest.raises(OutputError, match=r"another run has just saved in .*run; start again"), opened(run, anew=True):
        pass
    assert find(run).name == "step-00000001"
