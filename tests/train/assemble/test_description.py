"""What a folder says of a run that never came to its first step."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mt_core import MtError
from mt_core.errors import StoppedError
from mt_train import train
from mt_train.config.files import read_config

STEPS = {"steps": 2, "micro_batch_size": 2, "sequence_len": 32}


def config_of(rows: Path, **sections: Any) -> dict[str, Any]:
    return {"model": "kit-tiny", "dataset": {"name": "jsonl", "path": str(rows)}, "train": STEPS, **sections}


def ending_of(run: Path) -> dict[str, Any]:
    ended: dict[str, Any] = json.loads((run / "about.json").read_text())["ended"]
    return ended


@pytest.fixture
def rows(tmp_path: Path, kit_model: None) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "some words to learn from"}) + "\n")
    return path


def test_a_run_whose_rows_are_missing_says_what_it_was_and_why_it_failed_and_the_same_command_begins_anew(
    rows: Path, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", config_of(rows)
    kept = rows.rename(tmp_path / "elsewhere")
    with pytest.raises(MtError):
        train(config, output=run)
    assert read_config(run / "run.yaml")["dataset"]["path"] == str(rows)
    assert "kit-tiny" in json.loads((run / "about.json").read_text())["model"]
    ended = ending_of(run)
    assert (ended["reason"], ended["step"]) == ("failed", 0)
    assert f"{rows} does not exist" in ended["error"]
    kinds = [json.loads(line)["kind"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert kinds.count("failed") == 1
    kept.rename(rows)
    train(config, output=run)
    assert ending_of(run) == {"reason": "completed", "step": 2, "error": ""}


def test_one_that_is_stopped_while_its_rows_are_read_says_by_what(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(parts: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr("mt_train.assemble.steps.build_data", stop)
    with pytest.raises(StoppedError, match="stopped by SIGTERM before the first step"):
        train(config_of(rows), output=tmp_path / "run")
    assert ending_of(tmp_path / "run") == {"reason": "stopped", "step": 0, "error": "SIGTERM"}


def test_one_that_cannot_go_on_says_so_with_the_step_of_its_checkpoint_and_keeps_what_it_was(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, parameters = tmp_path / "run", "parameters"
    train(config_of(rows), output=run)
    before = {name: (run / name).read_bytes() for name in ("run.yaml", "metrics.jsonl", "plugins.lock.json")}
    about = json.loads((run / "about.json").read_text())

    def fail(parts: object) -> None:
        raise MtError("the disk is gone")

    monkeypatch.setattr("mt_train.assemble.steps.build_data", fail)
    with pytest.raises(MtError, match="the disk is gone"):
        train({"train": {"steps": 4}}, resume=run)
    assert {name: (run / name).read_bytes() for name in before} == before
    assert ending_of(run) == {"reason": "failed", "step": 2, "error": "MtError: the disk is gone"}
    assert json.loads((run / "about.json").read_text())[parameters] == about[parameters]
    (run / "about.json").write_text("{half a")
    with pytest.raises(MtError, match="the disk is gone"):
        train({"train": {"steps": 4}}, resume=run)
    assert ending_of(run)["reason"] == "failed"
