"""Which rows a run evaluates, and what it says of a limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mt_core.plugins.host import PluginHost
from mt_train import train
from mt_train.assemble.sources import read_whole
from mt_train.config.run import RunConfig
from mt_train.plugins.resolve import resolve
from mt_train.tracking.metrics import MetricsFile

SHAPE = {"n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1}


def config_of(**sections: Any) -> RunConfig:
    return resolve({"model": {"name": "llama", **SHAPE}, **sections}, PluginHost.discover()).config


@pytest.mark.parametrize(("read_rows", "limit", "expected"), [(None, 3, 3), (2, 3, 2), (5, 3, 3), (4, None, 4)])
def test_an_endless_stream_to_evaluate_on_is_read_up_to_the_limit(
    read_rows: int | None, limit: int | None, expected: int
) -> None:
    class Endless:
        def rows(self, epoch: int, seed: int) -> Iterator[dict[str, Any]]:
            return ({"id": str(number), "text": "x"} for number in count())

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    config = config_of(data={"read_rows": read_rows}, eval={"limit": limit})
    assert len(read_whole(config, Endless())) == expected


def test_a_run_says_its_limit_and_one_that_goes_on_with_another_that_its_figures_are_of_other_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {number} " * (1 + number % 3)}) + "\n" for number in range(20)))
    raw = {
        "model": {"name": "llama", **SHAPE},
        "dataset": {"name": "jsonl", "path": str(rows)},
        "data": {"eval": 8},
        "train": {"steps": 1, "micro_batch_size": 1, "sequence_len": 32},
        "eval": {"samples": 0, "limit": 2},
        "optimizer": {"lr": 1e-12},
    }
    train(raw, output=tmp_path / "few")
    assert "held out   2 rows, " in (said := capsys.readouterr()).out
    assert "; eval.limit is 2\n" in said.out
    assert json.loads((tmp_path / "few" / "about.json").read_text())["trained"]["names"][-1] == "lm_head.weight"
    few = MetricsFile(tmp_path / "few" / "metrics.jsonl").read()
    train({**raw, "data": {"eval": 2}, "eval": {"samples": 0}}, output=tmp_path / "two")
    assert "eval.limit" not in capsys.readouterr().out
    two = MetricsFile(tmp_path / "two" / "metrics.jsonl").read()
    assert few[0]["eval_loss"] == pytest.approx(two[0]["eval_loss"], rel=1e-6), "the same rows"
    train({"train": {"steps": 2}}, resume=tmp_path / "few")
    assert "eval.limit is" not in capsys.readouterr().err
    train({"train": {"steps": 3}, "eval": {"limit": None}}, resume=tmp_path / "few")
    assert "notice: eval.limit is none, and was 2: the figures of evaluations to come are of other rows" in (
        capsys.readouterr().err
    )


def test_a_limit_of_nothing_is_said_to_be_of_no_use(capsys: pytest.CaptureFixture[str]) -> None:
    raw = {"model": {"name": "llama", **SHAPE}, "train": {"steps": 1, "micro_batch_size": 1, "sequence_len": 32}}
    train({**raw, "data": {"eval": None, "read_rows": 4}, "eval": {"limit": 2}}, output=None)
    assert "notice: eval.limit is of no use with data.eval=none, which holds no rows out" in capsys.readouterr().err
