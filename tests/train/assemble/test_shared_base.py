"""An adapter over weights that another model has in memory: the same outputs as with weights of its own, and no weight twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_core.errors import CheckpointError, MtError, UsageError, WeightsError
from mt_core.nn import Batch, TrainModel
from mt_tools.cli.convert import main as mt_convert
from mt_train import load_over_base, load_run, train
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_file import run_config
from mt_train.assemble.shared_base import load_over
from mt_train.checkpoint.store import find
from mt_train.engine.plan import Plan
from mt_train.generation.loaded_model import LoadedModel
from mt_train.plugins.resolve import resolve

MODEL = {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 2, "n_kv_heads": 1}
WIDE = {"name": "lora", "rank": 4}
NARROW = {"name": "lora", "rank": 2, "targets": ["q_proj"]}
ALONE: dict[str, Any] = {
    "world": 1,
    "device": "cpu",
    "dtype": "fp32",
    "zero_stage": 0,
    "offload": "none",
    "micro_batch_size": 1,
    "global_batch_size": 1,
    "clip_norm": None,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs over weights of the seed, and over files; ``live`` stands for the one that goes on."""
    folder = tmp_path_factory.mktemp("shared-base")
    rows = [{"prompt": f"say {n} -> ", "response": f"it is {n}"} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))

    def run(name: str, model: dict[str, Any] = MODEL, seed: int = 0, **more: Any) -> Path:
        raw = {
            "model": model,
            "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
            "data": {"eval": None, "cache": "none"},
            "train": {"steps": 2, "seed": seed, "micro_batch_size": 4, **more.pop("train", {})},
            "optimizer": {"name": "adamw", "lr": 0.05},
            "eval": {"samples": 0},
            **more,
        }
        train(raw, output=folder / name)
        return folder / name

    found = {
        "live": run("live", adapter=NARROW),
        "wide": run("wide", adapter=WIDE),
        "pissa": run("pissa", adapter={"name": "pissa", "rank": 2}),
        "norms": run("norms", adapter=WIDE, train={"enable": ["*norm*"]}),
        "other seed": run("other-seed", adapter=WIDE, seed=7),
        "other shape": run("other-shape", {**MODEL, "dim": 64}, adapter=WIDE),
        "full": run("full"),
        "full too": run("full-too", seed=7),
    }
    for name, source in (("one", "full"), ("two", "full too")):
        assert mt_convert([str(found[source]), str(folder / f"weights-{name}")]) == 0
        files = {"name": "llama", "weights": str(folder / f"weights-{name}")}
        found |= {f"live on {name}": run(f"live-{name}", files, adapter=NARROW)}
        found |= {f"wide on {name}": run(f"wide-{name}", files, adapter=WIDE)}
    return found


def parts_of(run: Path) -> Parts:
    return Parts.of(resolve(run_config(find(run)), discover_plugins()))


def live_model(run: Path) -> TrainModel:
    """The model of a run as it is while its adapter is trained."""
    model = load_run(run).model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


def over(runs: dict[str, Path], live: str, run: str, **plan: Any) -> tuple[TrainModel, LoadedModel]:
    model = live_model(runs[live])
    return model, load_over(parts_of(runs[live]), model, Plan(**ALONE | plan), runs[run])


@torch.no_grad()
def hidden(model: TrainModel) -> torch.Tensor:
    ids = torch.arange(24).reshape(2, 12)
    zeros = torch.zeros_like(ids)
    out: torch.Tensor = model(Batch(ids, zeros, torch.arange(12).expand(2, 12), zeros))
    return out


@pytest.mark.parametrize(("live", "run"), [("live", "wide"), ("live on one", "wide on one")])
def test_it_computes_what_the_run_computes_with_weights_of_its_own(runs: dict[str, Path], live: str, run: str) -> None:
    model, loaded = over(runs, live, run)
    before = hidden(model)
    assert torch.equal(hidden(loaded.model), hidden(load_run(runs[run]).model))
    assert not torch.equal(hidden(loaded.model), before)
    assert torch.equal(hidden(model), before), "the model that is trained is as it was"
    own = [name for name, _ in live_model(runs[live]).named_parameters()]
    assert [name for name, _ in model.named_parameters()] == own


def test_no_weight_of_the_base_is_there_twice_or_trained(runs: dict[str, Path]) -> None:
    model, loaded = over(runs, "live", "wide")
    theirs = {name: each.data_ptr() for name, each in model.named_parameters()}
    for name, parameter in loaded.model.named_parameters():
        assert not parameter.requires_grad
        assert "lora_" in name or parameter.data_ptr() == theirs[name]
        assert "lora_" not in name or parameter.data_ptr() not in theirs.values()
    assert any("lora_" in name for name, _ in loaded.model.named_parameters())
    assert not loaded.model.training


def test_it_does_not_follow_the_adapter_that_is_trained(runs: dict[str, Path]) -> None:
    model, loaded = over(runs, "live", "wide")
    before = hidden(loaded.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(1.0)
    assert torch.equal(hidden(loaded.model), before)
    assert not torch.equal(hidden(model), before)


@pytest.mark.parametrize(
    ("live", "run", "plan", "error", "says"),
    [
        ("live", "wide", {"zero_stage": 3}, UsageError, "at ZeRO 3 it has a slice of each; train with"),
        ("live", "wide", {"pipeline": 2}, UsageError, "in a pipeline it has those of some layers"),
        ("live", "wide", {"sequence": 2}, UsageError, "it has only a part of each row"),
        ("live", "other seed", {}, WeightsError, "was trained over other weights than these: .* is another one"),
        ("live", "other shape", {}, UsageError, "has --model.dim 64, and this run 32"),
        ("live", "norms", {}, UsageError, "has weights of the model itself, such as .*norm"),
        ("pissa", "wide", {}, UsageError, "this run's adapter pissa rewrites the weights under it"),
        ("live", "pissa", {}, UsageError, "has weights of the model itself, such as "),
        ("live", "full", {}, WeightsError, "trained all of its model, which is no adapter"),
        ("live on one", "wide on two", {}, WeightsError, "was trained on other weights than .*other hashes"),
        ("live on one", "wide", {}, WeightsError, "was trained over other weights than these"),
    ],
)
def test_a_base_that_cannot_be_shared_is_refused_with_the_reason(
    runs: dict[str, Path], live: str, run: str, plan: dict[str, Any], error: type[MtError], says: str
) -> None:
    with pytest.raises(error, match=says):
        over(runs, live, run, **plan)


def test_weights_that_are_trained_are_no_base(runs: dict[str, Path]) -> None:
    model = load_run(runs["full"]).model.requires_grad_(True)
    with pytest.raises(
        UsageError, match=r"this run trains .* and \d+ more weights of the model itself.*--adapter lora"
    ):
        load_over(parts_of(runs["full"]), model, Plan(**ALONE), runs["wide"])


def test_a_folder_without_a_checkpoint_and_what_is_no_policy_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        load_over(parts_of(runs["live"]), live_model(runs["live"]), Plan(**ALONE), tmp_path)
    with pytest.raises(UsageError, match="policy is a int; give the policy that a run collects answers with"):
        load_over_base(runs["wide"], 3)  # type: ignore[arg-type]
