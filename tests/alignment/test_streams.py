"""Preferences over a stream through the commands: the base under an adapter is the reference, and what has no such base is refused."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from pair_cases import write_pairs

from mt_core.adapters import adapted_layers
from mt_tools.cli.eval import main as mt_eval
from mt_train import load_run
from mt_train.assemble import window_reference
from mt_train.assemble.window_reference import ReferencedSteps
from mt_train.cli.train import main as mt_train

LORA = {"adapter": "lora", "adapter.rank": "4", "adapter.alpha": "32"}
Command = Callable[..., int]


@pytest.fixture
def train(tmp_path: Path) -> Command:
    rows = write_pairs(tmp_path / "pairs.jsonl")

    def command(**options: str) -> int:
        sizes = {"model.dim": "32", "model.n-layers": "2", "model.ffn-dim": "48", "train.sequence-len": "160"}
        steps = {
            "train.steps": "4",
            "train.global-batch-size": "8",
            "train.micro-batch-size": "4",
            "train.dtype": "fp32",
        }
        data = {"dataset": "stream", "dataset.path": str(rows), "data.eval": "5", "data.cache": "none"}
        given = {"model": "llama", "objective": "dpo", "optimizer.lr": "0.01", "log.every-steps": "1", "output": "none"}
        return mt_train(
            [word for pair in ({**sizes, **steps, **data, **given} | options).items() for word in _said(*pair)]
        )

    return command


def _said(name: str, value: str) -> tuple[str, str]:
    return f"--{name}", value


def records(run: Path) -> list[dict[str, Any]]:
    """Figures of the steps of a run, but times and memory."""
    times = {"tokens_per_second", "memory_gib", "data_wait_seconds", "seconds"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


def test_a_stream_begins_with_the_known_loss_and_its_held_out_rows_are_measured_once(
    train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(output=str(run), **LORA) == 0
    said = capsys.readouterr().err
    assert "reference: the base under the adapter reads the rows of each step before it" in said
    assert "reference: the model of step 0 reads 5 rows once" in said
    lines = records(run)
    assert lines[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert abs(lines[-1]["reward_margin"]) > 1e-3
    assert mt_eval(["--run", str(run)]) == 0
    (found,) = json.loads((run / "eval/001/metrics.json").read_text())["results"]
    assert found["reward_margin"] == pytest.approx(lines[-1]["eval_reward_margin"], rel=1e-4)


def test_a_stream_without_held_out_rows_is_resumed_to_the_bit(train: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(output=str(run), **{**LORA, "data.eval": "none", "checkpoint.every-steps": "2"}) == 0
    assert not (run / "reference.safetensors").exists()
    expected = records(run)
    last = load_run(run).model.state_dict()
    checkpoints = run / "checkpoints"
    (checkpoints / "step-00000004").rename(tmp_path / "gone")
    assert mt_train(["--resume", str(checkpoints / "step-00000002")]) == 0
    assert records(run) == expected
    assert all(torch.equal(value, last[name]) for name, value in load_run(run).model.state_dict().items())


@pytest.mark.parametrize("adapter", ["dora", "lora-moe", "oft", "adalora"])
def test_other_adapters_that_leave_their_base_alone_have_a_stream_too(
    train: Command, tmp_path: Path, adapter: str
) -> None:
    assert train(output=str(tmp_path / "run"), adapter=adapter) == 0
    assert records(tmp_path / "run")[0]["loss"] == pytest.approx(math.log(2), rel=1e-5)


def test_a_reference_of_the_live_model_would_be_seen(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves along: no step has a margin then, which the other tests ask for."""
    live = window_reference.viewing
    monkeypatch.setattr(window_reference, "viewing", lambda model, view: live(model, "live"))
    assert train(output=str(tmp_path / "run"), **LORA) == 0
    assert all(abs(line["reward_margin"]) < 1e-5 for line in records(tmp_path / "run"))


def test_a_model_is_live_again_when_its_rows_are_measured(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, shown = ReferencedSteps.with_reference, []

    def watched(steps: ReferencedSteps, window: Any) -> Any:
        found = measured(steps, window)
        model = steps.engine.module.model
        shown.append((model.training, any(layer.shows_base for _, layer in adapted_layers(model))))
        return found

    monkeypatch.setattr(ReferencedSteps, "with_reference", watched)
    assert train(**LORA) == 0
    assert shown == [(True, False)] * 4


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "full fine-tuning": ({"adapter": "full"}, "adapter: full leaves no base that is the model of step 0"),
    "freeze": ({"adapter": "freeze", "adapter.blocks": "1"}, "adapter: freeze leaves no base"),
    "pissa": ({"adapter": "pissa"}, "adapter: pissa rewrites the weights under it"),
    "nlora": ({"adapter": "nlora"}, "adapter: nlora begins as another model than its base"),
    "loftq": ({"adapter": "loftq"}, "adapter: loftq leaves no base"),
    "more weights": ({**LORA, "train.enable": "*norm*"}, "train.enable: *norm* are trained beside the adapter"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_base_that_is_the_reference_is_refused_with_a_way_out(
    train: Command, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    options, problem = REFUSED[kind]
    assert train(**options) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert problem in said
    assert "--objective dpo has no reference for the rows of a stream" in said
    assert "dataset of files, or an objective or a loss without a reference (simpo, cpo, orpo)" in said


@pytest.mark.parametrize("options", [{"objective": "simpo"}, {"dataset": "jsonl"}], ids=["no reference", "a file"])
def test_the_ways_out_are_some(train: Command, options: dict[str, str]) -> None:
    assert train(**{"adapter": "full", "train.steps": "1", **options}) == 0


def test_an_adapter_that_is_trained_on_is_refused_and_its_merged_base_is_a_reference(
    train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first"
    assert train(output=str(first), objective="orpo", **LORA) == 0
    assert train(**{"adapter.weights": str(first)}) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"adapter.weights: the adapter begins with the values of {first}" in said
    assert "Merge them into the base (--model.adapters FOLDER), under a new adapter" in said
    assert train(output=str(tmp_path / "on"), **{"model.adapters": str(first)}, **LORA) == 0
    assert records(tmp_path / "on")[0]["loss"] == pytest.approx(math.log(2), rel=1e-6)


def test_an_overlay_is_refused_where_it_has_values_of_the_adapter(
    train: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "first"
    assert train(output=str(run), objective="orpo", **LORA) == 0
    (file,) = (run / "checkpoints/step-00000004/model").glob("*.safetensors")
    tensors = load_file(file)
    own = {name: value for name, value in tensors.items() if "lora_" in name}
    save_file(own, tmp_path / "own.safetensors")
    save_file({name: value for name, value in tensors.items() if name not in own}, tmp_path / "base.safetensors")
    assert train(**LORA, **{"model.overlay": str(tmp_path / "own.safetensors")}) == 2
    assert "own.safetensors has values of the adapter (model.layers.0." in " ".join(capsys.readouterr().err.split())
    assert train(**LORA, **{"model.overlay": str(tmp_path / "base.safetensors")}) == 0
