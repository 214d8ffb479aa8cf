"""What a run says reaches the console and the log file, each at its own level, and never with a secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mt_core.tracking.logs import LOGGER, for_the_file, notice
from mt_train.tracking.logs import log_to_file, show

TOKEN = "hf_" + "aB3" * 10


def test_what_is_said_before_the_file_is_open_stands_in_it_too(tmp_path: Path) -> None:
    handlers = list(LOGGER.handlers)
    with log_to_file(3, console="info", file="info") as log:
        notice("early")
        log.open(tmp_path)
        notice("warning: late")
        for_the_file("too fine", logging.DEBUG)
    lines = (tmp_path / "logs" / "rank-3.log").read_text().splitlines()
    assert [line.split(maxsplit=2)[2] for line in lines] == ["INFO    early", "WARNING warning: late"]
    assert LOGGER.handlers == handlers


def test_the_console_has_a_level_of_its_own_and_gets_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to_file(0, console="warning", file="debug") as log:
        log.open(tmp_path)
        show("step 1")
        notice("notice: by the way")
        notice("warning: mind this")
        for_the_file("traceback", logging.ERROR)
    show("after")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("after\n", "warning: mind this\n")
    text = (tmp_path / "logs" / "rank-0.log").read_text()
    assert [line.split()[-1] for line in text.splitlines()] == ["1", "way", "this", "traceback"]


def test_secrets_are_hidden_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-long-and-secret-key")
    with log_to_file(0, console="info", file="debug") as log:
        log.open(tmp_path)
        notice(f"with {TOKEN}")
        show("with a-long-and-secret-key")
    captured = capsys.readouterr()
    assert captured.err == "with •••\n"
    assert captured.out == "with •••\n"
    text = (tmp_path / "logs" / "rank-0.log").read_text()
    assert TOKEN not in text
    assert "a-long" not in text


def test_what_is_said_is_not_kept_where_there_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    for folder in (None, tmp_path):
        with log_to_file(3, console="info", file="debug") as log:
            notice("early")
            log.open(folder)
            for number in range(100):
                for_the_file(f"step {number}")
            assert not log._early.records
    assert "cannot be written" in capsys.readouterr().err
