"""``events.jsonl``: what a run has said, as records."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mt_core.tracking.logs import LOGGER, for_the_file, notice
from mt_train.tracking import events
from mt_train.tracking.logs import log_to_file


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / events.FILE).read_text().splitlines()]


def test_notices_are_records_with_step_and_kind_also_those_said_before_the_folder_is_there(tmp_path: Path) -> None:
    with log_to_file(0, console="error", file="warning") as log:
        notice("warning: rows are few")
        log.open(tmp_path)
        log.step = lambda: 7
        notice("notice: something to know")
        for_the_file("a line of the log alone")
        for_the_file("step-00000007: saved", event={"kind": "checkpoint", "bytes": 12})
    found = read(tmp_path)
    assert [(each["kind"], each["step"], each["text"]) for each in found] == [
        ("warning", 0, "rows are few"),
        ("notice", 7, "something to know"),
        ("checkpoint", 7, "step-00000007: saved"),
    ]
    assert found[-1]["bytes"] == 12
    assert found[0]["time"] <= found[-1]["time"]
    assert not any(isinstance(each, events.EventsFile) for each in LOGGER.handlers), "the logger is as it was"


def test_only_rank_0_writes_events(tmp_path: Path) -> None:
    with log_to_file(1, console="error", file="info") as log:
        log.open(tmp_path)
        notice("notice: from another rank")
    assert not (tmp_path / events.FILE).exists()


def test_a_run_that_goes_on_keeps_its_events_and_not_half_a_line(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with log_to_file(0, console="error", file="info") as log:
            log.open(tmp_path)
            notice(text)
        with (tmp_path / events.FILE).open("a") as file:
            file.write('{"time": 1')
    assert [each["text"] for each in read_whole(tmp_path)] == ["first", "second"]


def read_whole(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / events.FILE).read_text().split("\n")[:-1]]


def test_a_file_that_cannot_be_written_is_one_warning_and_no_endless_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    LOGGER.addHandler(handler)
    try:
        with log_to_file(0, console="error", file="info") as log:
            log.open(tmp_path)
            (tmp_path / events.FILE).mkdir()
            notice("one")
            notice("two")
            (tmp_path / events.FILE).rmdir()
            notice("three")
    finally:
        LOGGER.removeHandler(handler)
    assert sum("cannot be written" in text for text in said) == 1
    assert [each["text"] for each in read(tmp_path)] == ["one", "two", "three"]


def test_secrets_are_hidden_in_events(tmp_path: Path) -> None:
    with log_to_file(0, console="error", file="info") as log:
        log.open(tmp_path)
        notice("warning: token hf_" + "a1B2" * 9 + " was refused")
    assert "a1B2a1B2" not in (tmp_path / events.FILE).read_text()
