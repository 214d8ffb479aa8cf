"""Tokens, operations and memory of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from mt_core.nn import SdpaAttention, TokenObjective
from mt_core.rows import Sample
from mt_plugin_callbacks import accounting
from mt_train import load_run, train
from mt_train.tracking.metrics import MetricsFile


def last_record(run: Path) -> dict[str, Any]:
    return MetricsFile(run / "metrics.jsonl").read()[-1]


def test_operations_are_those_that_torch_counts(runs: Any) -> None:
    """Counted with torch's own counter over forward and backward of one row of the same length."""
    run = runs.train("run", steps=3, model={"dropout": 0.0}, callbacks={"flops": {"peak_teraflops": 2.0}})
    record = last_record(run)
    assert record["tokens_seen"] == 3 * 2 * 64
    model = load_run(run).model.train()
    model.attention = SdpaAttention("math")  # of which the counter knows every product
    batch = TokenObjective().collate([[Sample(list(range(64)), [True] * 64, "row")]], length=64).with_index()
    with FlopCounterMode(display=False) as counter:
        TokenObjective().loss(model(batch), model.head, batch).loss_sum.backward()
    assert record["petaflop"] * 1e15 == pytest.approx(counter.get_total_flops() * 6, rel=0.03)
    assert record["mfu"] == pytest.approx(record["teraflops"] / 2.0)


def test_without_a_known_peak_there_is_no_share_of_it(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_known_peak", lambda: None)
    record = last_record(runs.train("run", steps=1, callbacks=["flops"]))
    assert record["teraflops"] > 0
    assert "mfu" not in record


def test_memory_is_of_the_process_now(runs: Any) -> None:
    record = last_record(runs.train("run", steps=1, callbacks=["memory"]))
    assert 0.05 < record["resident_gib"] <= record["memory_gib"] * 1.01


def test_figures_of_callbacks_are_everywhere_that_figures_are(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.train("run", steps=1, callbacks=["flops"], trackers=["csv"])
    assert "tokens_seen" in (run / "metrics.csv").read_text().splitlines()[0]
    assert b"train/tokens_seen" in next((run / "tensorboard").iterdir()).read_bytes()
    train({"train": {"steps": 2}}, resume=run)
    assert last_record(run)["tokens_seen"] == 2 * 2 * 64
