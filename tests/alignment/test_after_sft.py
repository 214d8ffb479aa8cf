"""DPO after SFT with LoRA: on from its adapter, or a new one over it. Either way the reference is the model that SFT made."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mt_train import load_run
from mt_train.checkpoint.store import find
from mt_train.cli.train import main as mt_train

START = (
    "--model",
    "llama",
    "--model.dim",
    "32",
    "--model.n-layers",
    "2",
    "--model.ffn-dim",
    "48",
    "--dataset",
    "jsonl",
)
FEW = ("--train.sequence-len", "64", "--train.micro-batch-size", "2", "--train.steps", "2", "--data.eval", "none")
FEW += ("--eval.samples", "0", "--data.cache", "none")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``sft``, then ``on`` and ``over``; ``fresh`` is DPO without either."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [{"prompt": f"{a} + {b} = ", "response": str(a + b)} for a in range(4) for b in range(2)]
    pairs = [{"prompt": row["prompt"], "chosen": row["response"], "rejected": f"{row['response']}0"} for row in rows]
    for name, content in (("rows", rows), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in content))

    def train(name: str, objective: str, data: str, *words: object) -> Path:
        argv = [*START, "--dataset.path", folder / f"{data}.jsonl", "--objective", objective, *FEW, *words]
        assert mt_train([str(word) for word in (*argv, "--output", folder / name)]) == 0
        return folder / name

    lora = ("--adapter", "lora", "--adapter.rank", "4")
    sft = train("sft", "sft", "rows", *lora, "--optimizer.lr", "0.1")
    return {
        "sft": sft,
        "on": train("on", "dpo", "pairs", "--adapter.weights", sft),
        "over": train("over", "dpo", "pairs", "--model.adapters", sft, *lora),
        "fresh": train("fresh", "dpo", "pairs", *lora),
        "reward": (first := train("reward", "reward", "pairs", *lora, "--optimizer.lr", "0.1")),
        "reward on": train("reward-on", "reward", "pairs", "--adapter.weights", first, "--optimizer.lr", "1e-9"),
    }


def reference(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "reference.safetensors")


@pytest.mark.parametrize("way", ["on", "over"])
def test_the_first_loss_is_that_of_a_policy_which_is_its_reference(runs: dict[str, Path], way: str) -> None:
    first = json.loads((runs[way] / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_both_ways_have_the_reference_of_the_model_that_sft_made(runs: dict[str, Path]) -> None:
    on, over, fresh = (reference(runs[name]) for name in ("on", "over", "fresh"))
    assert on.keys() == over.keys()
    for name, values in on.items():
        torch.testing.assert_close(values, over[name], atol=1e-4, rtol=1e-5)
        assert (values - fresh[name]).abs().max() > 1e-2, "another model than without SFT"


def test_a_reward_model_that_is_trained_on_keeps_its_scores(runs: dict[str, Path]) -> None:
    first, on = (load_file(find(runs[name]) / "model/model-00001.safetensors") for name in ("reward", "reward on"))
    heads = [name for name in first if ".objective." in name]
    assert heads
    for name in (*heads, *(each for each in first if "lora_" in each)):
        torch.testing.assert_close(on[name], first[name], atol=1e-7, rtol=1e-6)


def test_the_runs_load_with_what_they_stand_on(runs: dict[str, Path]) -> None:
    for name in ("on", "over"):
        assert load_run(runs[name]).model is not None
