"""A run's folder belongs to one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_core.checkpoint.folder import next_run_folder, opened
from mt_core.errors import OutputError


def test_a_folder_that_is_not_empty_is_refused_unless_resumed_or_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(folder):
        (folder / "metrics.jsonl").write_text("old")
    with pytest.raises(OutputError, match=r"--resume .* --overwrite"), opened(folder):
        pass
    with opened(folder, resume=True):
        assert (folder / "metrics.jsonl").exists()
    with opened(folder, overwrite=True):
        assert not (folder / "metrics.jsonl").exists()


def test_overwriting_never_deletes_what_no_run_wrote(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(OutputError, match=r"thesis\.tex"), opened(tmp_path, overwrite=True):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(OutputError, match="in use by process"), opened(tmp_path):
        pass
    with opened(tmp_path):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(OutputError, match="is a file"), opened(tmp_path / "run"):
        pass
    with pytest.raises(OutputError, match="cannot be written"), opened(tmp_path / "run" / "below"):
        pass


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    assert next_run_folder("llama-tiny", tmp_path).name == "llama-tiny-001"
    for name in ("llama-tiny-001", "llama-tiny-007", "llama-tiny-old"):
        (tmp_path / name).mkdir()
    assert next_run_folder("llama-tiny", tmp_path).name == "llama-tiny-008"
