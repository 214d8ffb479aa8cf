"""Small files are read up to a bound, and a pipe that nobody writes into is not waited for without end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mt_core.errors import UsageError
from mt_train.config import reading
from mt_train.config.files import read_config
from mt_train.config.reading import read_small, read_small_text
from mt_train.config.texts import read_text


def test_a_file_is_read_as_python_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for text in ("", "a: 1\r\nb: é\rc", "x" * 3_000_000):
        path.write_bytes(text.encode())
        assert read_small_text(path) == path.read_text(encoding="utf-8")


def test_a_pipe_is_read_until_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"train: {steps: 3}\n" + b"#" * 200_000,))
    writer.start()
    assert read_config(tmp_path / "pipe") == {"train": {"steps": 3}}
    writer.join()


def test_a_pipe_that_nobody_writes_into_and_a_device_without_end_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_WAIT_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe: it is no file, and gave nothing for 0\.05 seconds"):
        read_config(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"/dev/zero: it has more than 1 MB"):
        read_config("/dev/zero")
    with pytest.raises(ValueError, match="gave nothing"):
        read_text(str(tmp_path / "pipe"))
    with pytest.raises(IsADirectoryError):
        read_small(tmp_path)
