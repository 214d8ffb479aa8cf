"""The file with which somebody asks a run for a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from mt_train.checkpoint.request import SAVE, SaveRequest


def test_a_request_is_taken_once_and_another_one_after_it(tmp_path: Path) -> None:
    request = SaveRequest(tmp_path)
    found = [request.take()]
    for _ in range(2):
        (tmp_path / "save").touch()
        found += [request.take(), request.take()]
    assert found == [0, SAVE, 0, SAVE, 0]


def test_a_link_to_nowhere_is_a_request(tmp_path: Path) -> None:
    (tmp_path / "save").symlink_to(tmp_path / "none")
    assert SaveRequest(tmp_path).take() == SAVE


def test_ranks_without_a_folder_look_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("save").touch()
    assert SaveRequest(None).take() == 0


def test_a_request_that_cannot_be_removed_is_told_once_and_saves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "save").mkdir()
    request = SaveRequest(tmp_path)
    assert [request.take(), request.take()] == [0, 0]
    assert capsys.readouterr().err.count("asks for a checkpoint and cannot be removed") == 1
