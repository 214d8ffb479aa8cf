"""Whole runs, as a user starts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mt_core import CheckpointError, ConfigError
from mt_tools.cli.eval import main as mt_eval
from mt_train import train
from mt_train.engine.fragments import _unlike

SMALL = {"name": "kit-tiny", "dim": 32}

pytestmark = pytest.mark.usefixtures("kit_model")


def run(folder: Path, steps: int = 3, **keys: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights and optimizer state of the last checkpoint."""
    more = keys.pop("train", {})
    sections = {"train": {"steps": steps, "sequence_len": 32, "micro_batch_size": 2, **more}, "eval": {"samples": 0}}
    train({"model": SMALL, **sections, **keys}, output=folder)
    checkpoint = folder / "checkpoints" / f"step-{steps:08d}"
    weights = {name: each for file in checkpoint.glob("model/*.safetensors") for name, each in load_file(file).items()}
    return weights, load_file(checkpoint / "state" / "rank-0000.safetensors")


def test_a_schedule_free_run_publishes_the_average_and_keeps_what_it_trains(tmp_path: Path) -> None:
    weights, state = run(tmp_path / "run", optimizer="schedule-free-adamw", schedule="constant")
    for name, published in weights.items():
        trained, fast = (state[f"{key}::{name}"].view_as(published) for key in ("master", "z"))
        torch.testing.assert_close(published, trained.lerp(fast, 1 - 1 / 0.9), rtol=0, atol=0)
        assert not torch.equal(published, trained)
    assert mt_eval(["--run", str(tmp_path / "run")]) == 0
    figures = json.loads(next(tmp_path.glob("run/eval/*/metrics.json")).read_text())
    while_training = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert while_training["eval_loss"] == pytest.approx(figures["results"][0]["loss"], rel=1e-6), (
        "evaluated is what is published"
    )


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"name": "wsd", "decay_steps": 20}, "schedule.decay-steps: 20 does not fit into the 9 updates"),
        ({"name": "cosine-restarts", "cycles": 6}, r"schedule.cycles: 6 \(growth 1\) gives a cycle fewer than 2"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_with_other_faults_of_the_config(
    tmp_path: Path, schedule: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)2 faults.*train.sequence-len: .*{said}"):
        run(tmp_path / "run", 10, schedule=schedule, train={"sequence_len": 10**6})


def test_parameters_that_are_disabled_stay_as_they_are(tmp_path: Path) -> None:
    off = {"disable": ["*embed*", "*norm*"], "enable": ["norm.weight"]}
    one, _ = run(tmp_path / "one", 1, train=off, optimizer={"name": "lion", "lr": 1e-2}, schedule="constant")
    two, state = run(tmp_path / "two", 2, train=off, optimizer={"name": "lion", "lr": 1e-2}, schedule="constant")
    same = {name for name in one if torch.equal(one[name], two[name])}
    assert same == {name for name in one if "embed" in name or "norm" in name}, "disable wins"
    assert not [key for key in state if "embed" in key]
    about = json.loads((tmp_path / "two" / "about.json").read_text())
    assert [(group["name"], group["tensors"]) for group in about["groups"]] == [("decay", 9), ("no_decay", 4)]


@pytest.mark.needs("mt-plugin-adapters")
@pytest.mark.parametrize("optimizer", [{"name": "muon"}, {"name": "badam", "switch_steps": 1}], ids=["muon", "badam"])
def test_what_an_adapter_claims_is_divided_by_the_optimizer_as_well(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    """LoRA+ claims B for another rate; which block it is in, and whether it is transformed, is the optimizer's to say."""
    given = {
        **optimizer,
        "lr": 0.01,
        "weight_decay": 0.1,
        "layer_decay": 0.5,
        "rates": {"*qkv_proj.lora_B": {"scale": 2}},
    }
    run(tmp_path / "run", 3, adapter={"name": "lora-plus", "ratio": 4}, optimizer=given, schedule="constant")
    groups = json.loads((tmp_path / "run/about.json").read_text())["groups"]
    assert {group["weight_decay"] for group in groups} == {0.1}
    of = {group["name"]: group["lr"] for group in groups}
    claimed = {name: rate for name, rate in of.items() if name.startswith("lora_B ")}
    assert len(claimed) == 2 * 2, "of two blocks, qkv_proj and the others"
    for name, rate in claimed.items():
        last = 1 if "qkv_proj" not in name else 2
        assert rate == pytest.approx(4 * last * 0.01 * 0.5 ** int(name.partition(" from the head")[0][-1]))


def test_the_rate_that_is_recorded_is_that_of_groups_without_one_of_their_own(tmp_path: Path) -> None:
    for name in ("muon", "lion"):
        optimizer = {"name": name, "lr": 1e-2, "rates": {"*embed*": {"scale": 0.5}}}
        run(tmp_path / name, 1, optimizer=optimizer, schedule="constant")
        record = json.loads((tmp_path / name / "metrics.jsonl").read_text())
        assert record["lr"] == 1e-2


def test_state_that_is_no_tensor_is_refused_by_name() -> None:
    class Engine:
        class plan:  # noqa: N801
            zero_stage = 0

        inner_optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)

        def optimizer_tensor(self, parameter: torch.Tensor) -> torch.Tensor:
            return parameter

    weight = Engine.inner_optimizer.param_groups[0]["params"][0]
    Engine.inner_optimizer.state[weight]["projector"] = object()
    with pytest.raises(CheckpointError, match="SGD keeps 'projector', a object, in its state"):
        _unlike(Engine(), weight)  # type: ignore[arg-type]


def test_factored_state_of_matrices_with_one_row_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """A LoRA of rank 1 has them; the sum of each of their columns has as many numbers as they."""
    keys: dict[str, Any] = {"adapter": {"name": "lora", "rank": 1}, "optimizer": "adalomo", "schedule": "constant"}
    whole, state = run(tmp_path / "whole", steps=3, train={"clip_norm": None}, **keys)
    run(tmp_path / "run", steps=2, train={"clip_norm": None}, **keys)
    train({"train": {"steps": 3}}, resume=tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    resumed = {name: each for file in checkpoint.glob("model/*.safetensors") for name, each in load_file(file).items()}
    assert all(torch.equal(each, resumed[name]) for name, each in whole.items())
    again = load_file(checkpoint / "state" / "rank-0000.safetensors")
    assert again.keys() == state.keys()
    assert all(torch.equal(each, again[name]) for name, each in state.items())
