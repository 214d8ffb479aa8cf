"""A folder of any type through the commands, as its user runs them: nobody names a family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.huggingface import tiny_models
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from mt_core.nn import Batch
from mt_plugin_alignment.scoring import Scorer
from mt_tools.cli.convert import main as convert
from mt_tools.cli.export import main as export
from mt_tools.cli.generate import main as generate
from mt_train.api import load_run, load_weights
from mt_train.cli.train import main as run
from mt_train.engine.build import stored_layers

IN_CI = ["glm4", "gpt_oss", "mixtral"]
OTHERS = [
    pytest.param(kind, marks=pytest.mark.soak)
    for kind in (
        "deepseek_v3",
        "gpt_neox",
        "granite",
        "mistral",
        "nemotron_h",
        "qwen3_moe",
        "qwen3_next",
        "recurrent_gemma",
    )
]
SMALL = ["--train.sequence-len", "48", "--train.micro-batch-size", "2", "--data.read-rows", "4", "--data.eval", "none"]
STEPS = ["--train.steps", "2"]


@pytest.fixture(scope="module", params=IN_CI + OTHERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / request.param
    tiny_models.model(request.param).save_pretrained(path)
    return path


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(ids, use_cache=False).logits
    return logits


def logits_of_run(path: Path, ids: torch.Tensor) -> torch.Tensor:
    model = load_run(path).model
    zeros = torch.zeros_like(ids)
    with torch.no_grad():
        hidden = model(Batch(ids, zeros, torch.arange(ids.shape[1]).expand(ids.shape), zeros).with_index())
        logits: torch.Tensor = model.head(hidden.flatten(0, 1)).unflatten(0, ids.shape)
    return logits


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_it_is_trained_talks_and_is_opened_by_transformers(
    folder: Path, adapter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "run", tmp_path / "out"
    model = ["--model", "huggingface", "--model.weights", str(folder)]
    assert run([*model, "--adapter", adapter, *SMALL, *STEPS, "--output", str(path)]) == 0
    capsys.readouterr()
    assert generate(["--run", str(path), "--prompt", "The if", "--greedy", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out
    if adapter == "full":
        assert convert([str(path), str(out)]) == 0
    else:
        assert export(["--run", str(path), "--merge", "--output", str(out)]) == 0
    ids = torch.randint(3, 250, (2, 20), generator=torch.Generator().manual_seed(0))
    ours, theirs = logits_of_run(path, ids), logits_of(out, ids)
    assert (ours - theirs).norm() / theirs.norm() < 1e-5
    assert (theirs - logits_of(folder, ids)).norm() / theirs.norm() > 1e-4, "nothing was trained"


def test_a_folder_talks_without_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--model",
        "huggingface",
        "--weights",
        str(folder),
        "--prompt",
        "The if",
        "--greedy",
        "--max-new-tokens",
        "8",
    ]
    assert generate(words) == 0
    assert capsys.readouterr().out


def test_a_reward_model_is_merged_opened_by_transformers_and_read_back(tmp_path: Path) -> None:
    folder, path, out, rows = (tmp_path / name for name in ("mixtral", "run", "out", "rows.jsonl"))
    tiny_models.model("mixtral").save_pretrained(folder)
    rows.write_text("".join(json.dumps({"prompt": "Q", "chosen": "yes", "rejected": each}) + "\n" for each in "abcd"))
    words = ["--model", "huggingface", "--model.weights", str(folder), "--adapter", "lora", "--objective", "reward"]
    words += ["--dataset", "jsonl", "--dataset.path", str(rows), *SMALL, *STEPS, "--output", str(path)]
    assert run(words) == 0
    assert export(["--run", str(path), "--merge", "--output", str(out)]) == 0
    loaded, turns = load_run(path), [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "yes, it is"}]
    chat = [{**each, "raw": True} for each in turns]
    ours = Scorer(loaded).score([chat])
    assert loaded.template is not None
    theirs = AutoModelForSequenceClassification.from_pretrained(out, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        found = theirs.eval()(torch.tensor([loaded.template.encode(chat).ids])).logits[:, 0].tolist()
    assert found == pytest.approx(ours, abs=1e-5)
    assert Scorer(load_weights(out, objective="reward")).score([chat]) == pytest.approx(ours, abs=1e-5)


def test_experts_are_stored_in_four_bits_under_an_adapter_and_routers_report(tmp_path: Path) -> None:
    folder, path = tmp_path / "mixtral", tmp_path / "run"
    tiny_models.model("mixtral").save_pretrained(folder)
    words = [
        "--model",
        "huggingface",
        "--model.weights",
        str(folder),
        "--adapter",
        "lora",
        "--quantizer",
        "nf4",
        *SMALL,
        *STEPS,
        "--output",
        str(path),
    ]
    assert run(words) == 0
    stored = {name for name, _ in stored_layers(load_run(path).model)}
    assert {
        f"model.layers.2.mlp.experts.{expert}.{name}" for expert in range(4) for name in ("w1", "w2", "w3")
    } <= stored
    steps = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    figures = {
        key: value
        for step in steps
        for key, value in {**step, **step.get("metrics", {})}.items()
        if key.startswith("router_")
    }
    assert figures.keys() == {"router_busiest", "router_idlest", "router_dead", "router_entropy"}
    assert figures["router_busiest"] >= 1 >= figures["router_idlest"]
