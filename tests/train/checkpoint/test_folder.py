"""A run's folder belongs to one run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mt_core.errors import OutputError
from mt_train.checkpoint.file_names import FILES, FOLDERS, LOCK, RECORD
from mt_train.checkpoint.folder import check_usable, next_run_folder, open_run_folder, read_record
from mt_train.checkpoint.store import CheckpointStore, Retention, find


def leave_a_run(folder: Path) -> None:
    """What a finished run leaves."""
    with open_run_folder(folder):
        for name in ("run.yaml", "plugins.lock.json", "metrics.jsonl", "loss.png", "completed"):
            (folder / name).write_text("old")
        for name in ("logs/rank-0.log", "tensorboard/events.out.tfevents.1.host.2.0"):
            (folder / name).parent.mkdir()
            (folder / name).write_text("old")
        CheckpointStore(folder).save(1, write=lambda staging: [], manifest={}, keep=Retention(last=1))


def test_a_folder_that_is_not_empty_is_refused_unless_resumed_or_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    leave_a_run(folder)
    with pytest.raises(OutputError, match=r"--resume .* --overwrite"), open_run_folder(folder):
        pass
    with open_run_folder(folder, resume=True):
        assert (folder / "metrics.jsonl").exists()
    with open_run_folder(folder, overwrite=True):
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
        open_run_folder(tmp_path, overwrite=True),
    ):
        pass
    assert (tmp_path / name).read_text() == "precious"
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_folder_that_only_looks_like_a_runs_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("of another program")
    with pytest.raises(OutputError, match=r"replaces a run, and .* is none"), open_run_folder(tmp_path, overwrite=True):
        pass
    assert (tmp_path / "logs" / "rank-0.log").exists()
    assert not (tmp_path / ".lock").exists()


def test_overwriting_never_follows_a_link(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    leave_a_run(run)
    (run / "checkpoints").rename(disk)
    (run / "checkpoints").symlink_to(disk)
    with open_run_folder(run, overwrite=True):
        assert not (run / "checkpoints").is_symlink()
    assert (disk / "latest").exists()


OWN = ("table.csv", "tables/steps.csv", "kept/*", "service")
"""What components of a run say that they write."""
WRITTEN = [
    *sorted(FILES - {LOCK}),
    *FOLDERS,
    "logs/rank-0.log",
    "eval/001",
    "tensorboard/events.out.tfevents.17.host",
    "checkpoints/latest",
    "checkpoints/.tmp-latest",
    "checkpoints/step-00000002",
    "table.csv",
    ".tmp-table.csv",
    "table.csv.damaged",
    "tables",
    "tables/steps.csv",
    "tables/.tmp-steps.csv",
    "kept",
    "kept/id",
    "service",
    "service/deep/file",
]


@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_goes_on_through_no_link_in_its_folder(tmp_path: Path, name: str, kind: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    leave_a_run(run)
    if kind == "folder":
        outside.mkdir()
    elif kind == "file":
        outside.write_text("precious")
    place = run / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(outside)
    with (
        pytest.raises(OutputError, match=rf"has links where a run writes: {re.escape(name)}; put what they lead to"),
        open_run_folder(run, resume=True, own=OWN),
    ):
        pytest.fail("it was open_run_folder")
    assert not outside.is_dir() or not any(outside.iterdir())
    assert not outside.is_file() or outside.read_text() == "precious"
    if name in ("tables", "kept", "checkpoints/step-00000002"):
        with pytest.raises(OutputError, match=rf"files that no run wrote in .*: {name}; move"):
            check_usable(run, overwrite=True, own=OWN)
        return
    with open_run_folder(run, overwrite=True, own=OWN):
        assert [path.name for path in run.iterdir()] == [LOCK]
    assert outside.exists() == (kind != "nothing")


def test_a_link_that_no_run_writes_through_is_left_alone(tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    (tmp_path / "service").mkdir()
    for link, target in (("notes", "/tmp"), ("service/latest", "first"), ("logs/today", "rank-0.log")):
        (tmp_path / link).symlink_to(target)
    with open_run_folder(tmp_path, resume=True, own=OWN):
        assert (tmp_path / "service/latest").is_symlink(), "within the folder, and a component's own"


@pytest.mark.parametrize("kept", ["by the run that replaces it", "in about.json"])
def test_what_components_wrote_is_the_runs_own(tmp_path: Path, kept: str) -> None:
    """That run may have had other components, so the run that was there counts, too."""
    leave_a_run(tmp_path)
    for name in ("table.csv", "table.csv.damaged", "tables/steps.csv", "kept/id", "service/deep/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("figures")
    with pytest.raises(OutputError, match=r"kept, service, table.csv, table.csv.damaged, tables"):
        check_usable(tmp_path, overwrite=True)
    own = OWN
    if kept == "in about.json":
        own = ()
        (tmp_path / "about.json").write_text(json.dumps({RECORD: OWN}))
    (tmp_path / "tables/notes.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"no run wrote in .*: tables/notes.txt; move"):
        check_usable(tmp_path, overwrite=True, own=own)
    (tmp_path / "tables/notes.txt").unlink()
    with open_run_folder(tmp_path, overwrite=True, own=own):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside", "..", ".", ""])
def test_a_record_names_nothing_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    leave_a_run(tmp_path)
    (tmp_path / "about.json").write_text(json.dumps({RECORD: [name, 7, "table.csv"]}))
    assert read_record(tmp_path) == ["table.csv"]
    for content in ("{", "[]", '{"files": 3}', "[" * 100_000):
        (tmp_path / "about.json").write_text(content)
        assert read_record(tmp_path) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OutputError, match="is a file"), open_run_folder(tmp_path / "run"):
        pass
    with pytest.raises(OutputError, match="cannot be written"), open_run_folder(tmp_path / "run" / "below"):
        pass


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.rename", "pathlib.Path.mkdir", "pathlib.Path.unlink"])
def test_a_folder_that_cannot_be_written_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(call, refuse)
    with (
        pytest.raises(OutputError, match=r"cannot be written: Read-only file system; choose"),
        open_run_folder(tmp_path / "run"),
    ):
        pytest.fail("it was open_run_folder")


def test_an_error_of_the_run_itself_is_not_one_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), open_run_folder(tmp_path):
        raise FileNotFoundError


def test_a_new_folder_holds_nothing_but_its_lock(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "deep" / "run") as folder:
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
    with open_run_folder(run):
        (run / "run.yaml").write_text("")
    with open_run_folder(run, anew=True):
        assert not (run / "run.yaml").exists()
        (run / "run.yaml").write_text("")
        CheckpointStore(run).save(1, write=lambda staging: [], manifest={}, keep=Retention(last=1))
    with (
        pytest.raises(OutputError, match=r"another run has just saved in .*run; start again"),
        open_run_folder(run, anew=True),
    ):
        pass
    assert find(run).name == "step-00000001"


def leave_before_the_first_step(folder: Path) -> None:
    """What a run leaves that was stopped, or failed, before its first step."""
    with open_run_folder(folder):
        for name in ("run.yaml", "plugins.lock.json", "about.json", "metrics.jsonl"):
            (folder / name).write_text("" if name.endswith("jsonl") else "early")
        for name in ("logs/rank-0.log", "tensorboard/events.out.tfevents.1.host.2.0"):
            (folder / name).parent.mkdir()
            (folder / name).write_text("early")


def test_where_a_run_has_trained_nothing_the_next_one_begins_and_keeps_its_logs(tmp_path: Path) -> None:
    leave_before_the_first_step(tmp_path / "run")
    with open_run_folder(tmp_path / "run"):
        assert (tmp_path / "run" / "logs" / "rank-0.log").read_text() == "early"


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "samples.jsonl", "completed", "report.html", "loss.png", "eval/001/metrics.json"),
        *("checkpoints/step-00000001/manifest.json", "checkpoints/.tmp-step-00000001/model/x", "metrics.jsonl.damaged"),
        *("thesis.tex", "logs/mine.log", "tensorboard/x"),
    ],
)
def test_one_that_has_trained_or_holds_what_no_run_wrote_is_refused_as_ever(tmp_path: Path, name: str) -> None:
    leave_before_the_first_step(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / name).write_text("precious")
    with pytest.raises(OutputError, match="already exists and is not empty"), open_run_folder(tmp_path):
        pass
    assert (tmp_path / name).read_text() == "precious"


def test_a_link_in_the_place_of_figures_is_no_sign_of_a_run_that_trained_nothing(tmp_path: Path) -> None:
    leave_before_the_first_step(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="not empty"), open_run_folder(tmp_path / "run"):
        pass


def test_only_a_run_with_a_checkpoint_is_offered_to_be_gone_on_with(tmp_path: Path) -> None:
    leave_before_the_first_step(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("a step")
    with pytest.raises(OutputError) as raised, open_run_folder(tmp_path):
        pass
    assert "--resume" not in str(raised.value)
    assert "--overwrite" in str(raised.value)
