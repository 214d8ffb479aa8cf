"""What a run can do without never stops it, and is caught up with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mt_core.tracking.appender import Appender


def test_what_could_not_be_written_is_written_later_after_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder" / "lines"
    path.parent.write_text("in the way")
    file = Appender(path)
    for number in range(3):
        file.append(f"{number}\n".encode())
    said = capsys.readouterr().err
    assert said.count("warning:") == 1
    assert f"{path} cannot be written: File exists; training goes on" in said
    path.parent.unlink()
    file.append(b"3\n")
    file.append(b"4\n")
    assert path.read_text() == "0\n1\n2\n3\n4\n"
    assert capsys.readouterr().err == f"notice: {path} can be written again, and holds what was missing\n"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_appended_to(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, precious = tmp_path / "lines", tmp_path / "precious"
    precious.write_text("mine")
    {"link": lambda: path.symlink_to(precious), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    Appender(path).append(b"x")
    assert "cannot be written" in capsys.readouterr().err
    assert precious.read_text() == "mine"
