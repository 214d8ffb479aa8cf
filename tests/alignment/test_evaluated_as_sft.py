"""A run that learned from rewards is evaluated on rows with answers: its rewards and its value head are no part of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_core.plugins.host import PluginHost
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.eval import main as mt_eval
from mt_tools.evaluation.jobs import jobs_of
from mt_train import train


def test_an_objective_whose_plugin_is_gone_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    stored = {"model": {"name": "llama"}, "objective": {"name": "gone", "beta": 0.1}}
    asked = {"objective": {"name": "sft"}, "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")}}
    (job,) = jobs_of(tmp_path, stored, asked, PluginHost.discover())
    assert job.parts.config.objective.name == "sft"


@pytest.mark.parametrize("objective", ["grpo", "ppo"])
def test_the_loss_is_that_of_the_exported_model(objective: str, tmp_path: Path) -> None:
    asked = [{"prompt": f"What is {n} + {n}? ", "answer": f"{2 * n}"} for n in range(6)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    answered = [{"prompt": row["prompt"], "response": row["answer"]} for row in asked]
    (tmp_path / "answered.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answered))
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "objective": {"name": objective, "max_new_tokens": 4, "prompts": 2, "group": 2},
        "rewards": ["exact"],
        "dataset": {"name": "jsonl", "path": str(tmp_path / "asked.jsonl")},
        "data": {"eval": None},
        "train": {"steps": 1, "sequence_len": 64},
        "log": {"console_level": "error"},
    }
    run = tmp_path / "run"
    train(raw, output=run)
    assert mt_convert([str(run), str(tmp_path / "hf")]) == 0

    def loss(*words: str) -> Any:
        rows = ["--dataset", "jsonl", "--dataset.path", str(tmp_path / "answered.jsonl"), "--objective", "sft"]
        out = tmp_path / words[0].strip("-")
        assert mt_eval([*words, *rows, "--train.sequence-len", "64", "--output", str(out)]) == 0
        (result,) = json.loads((out / "metrics.json").read_text())["results"]
        assert result["tokens"] > 0
        return result["loss"]

    assert loss("--run", str(run)) == pytest.approx(loss("--weights", str(tmp_path / "hf")), abs=1e-6)
