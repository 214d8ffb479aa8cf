"""Epochs of a stream, whose end is known when no row comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core import ConfigError
from mt_train import train
from mt_train.assemble.callbacks import Events
from mt_train.tracking.metrics import MetricsFile

TINY = {"name": "llama", "dim": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 32}


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    """A stream of 40 rows in blocks of 8, four rows a step: ten steps an epoch."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(40)))
    return {
        "model": TINY,
        "dataset": {"name": "stream", "path": str(file)},
        "data": {"shuffle_buffer": 8, "batching": "padding", "eval": "none"},
        "train": {"steps": 12, "sequence_len": 64, "micro_batch_size": 4},
    }


def test_an_epoch_begins_for_callbacks_once_and_with_its_own_number(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, seen = Events.send, []

    def record(events: Events, event: str, step: int, **fields: Any) -> Any:
        if event in ("on_epoch_start", "on_epoch_end", "on_step_start", "on_after_optimizer_step"):
            seen.append((event, step, fields["epoch"]))
        return send(events, event, step, **fields)

    monkeypatch.setattr(Events, "send", record)
    train(raw, output=tmp_path / "run")
    epochs = [each for each in seen if "epoch" in each[0]]
    assert epochs == [("on_epoch_start", 0, 0), ("on_epoch_end", 10, 0), ("on_epoch_start", 10, 1)]
    for event, first in (("on_step_start", 0), ("on_after_optimizer_step", 1)):
        assert [epoch for name, _, epoch in seen if name == event] == [0] * 10 + [1] * 2, f"{event} from step {first}"
    assert not any("epoch" in each for each in MetricsFile(tmp_path / "run" / "metrics.jsonl").read())
    seen.clear()
    train({"train": {"steps": 13}}, resume=tmp_path / "run")
    assert [each for each in seen if "epoch" in each[0]] == [], "the second epoch had begun before"
    seen.clear()
    train({"train": {"steps": 21}}, resume=tmp_path / "run")
    assert [each for each in seen if "epoch" in each[0]] == [("on_epoch_end", 20, 1), ("on_epoch_start", 20, 2)]


@pytest.mark.parametrize("section", ["eval", "checkpoint"])
def test_an_interval_of_epochs_is_refused(section: str, raw: dict[str, Any]) -> None:
    """It never came: a stream is at the end of no epoch before the next one begins."""
    with pytest.raises(ConfigError, match=rf"{section}.every_epochs: 1 counts epochs.* Set --{section}.every-steps N"):
        train({**raw, section: {"every_epochs": 1}}, output=None)
