"""Where the time of a start goes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mt_train import train
from mt_train.assemble.start_times import StartTimes

PARTS = ["rows", "connection", "agreement", "model", "checkpoint and files"]


@pytest.mark.needs("mt-plugin-llama")
def test_a_run_and_one_that_goes_on_say_what_each_part_of_their_start_took(tmp_path: Path) -> None:
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1},
        "train": {"steps": 1, "micro_batch_size": 1, "global_batch_size": 1, "sequence_len": 16},
        "data": {"eval": None, "read_rows": 8},
    }
    began = time.perf_counter()
    train(raw, output=tmp_path / "run")
    took = time.perf_counter() - began
    train({"train": {"steps": 2}}, resume=tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    first, again = [each for each in events if each["kind"] == "start"]
    assert list(first["seconds"]) == list(again["seconds"]) == PARTS
    assert 0 < sum(first["seconds"].values()) < took
    assert (first["step"], again["step"]) == (0, 1)
    assert first["text"].startswith("ready after ")
    assert first["text"] in (tmp_path / "run/logs/rank-0.log").read_text()


def test_a_part_has_what_has_passed_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    times = StartTimes()
    times.end("rows")
    times.end("model")
    assert times._seconds == {"rows": 2.0, "model": 0.5}
