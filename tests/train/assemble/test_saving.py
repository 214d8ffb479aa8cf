"""Checkpoints in the background, and of trained weights only."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mt_core import CheckpointError
from mt_train import load_run, train
from mt_train.checkpoint import tensors as tensors_module
from mt_train.checkpoint.store import CheckpointStore, find, verify
from mt_train.checkpoint.tensors import open_model
from mt_train.engine import snapshot
from mt_train.engine.engine import Engine

PLUGIN = """
from mt_core import Adapter, AdapterComponent, Component, hookimpl

class Head(Adapter):
    def trainable_parameters(self, model):
        return [name for name, _ in model.named_parameters() if name.startswith(("lm_head", "model.norm"))]

class Watch:
    seen = []
    def on_checkpoint_saved(self, context):
        self.seen.append((context.step, (context.checkpoint / "manifest.json").is_file()))

@hookimpl
def mt_adapters():
    return [AdapterComponent(name="head-only", summary="trains norm and head", build=lambda config: Head())]

@hookimpl
def mt_callbacks():
    return [Component(name="watch", summary="looks at what is saved", build=lambda config: Watch())]
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's adapter and callback, installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "acme_saving.py").write_text(PLUGIN)
    info = site / "acme_saving-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-saving\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_saving\n")
    monkeypatch.syspath_prepend(site)


def raw_config(steps: int = 6, **checkpoint: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 1, "dropout": 0.1},
        "train": {"steps": steps, "micro_batch_size": 2},
        "data": {"eval": 4},
        "eval": {"every_steps": 3, "samples": 0},
        "checkpoint": {"every_steps": 2, "keep_last": 9, **checkpoint},
    }


def content(run: Path) -> dict[str, list[str]]:
    """SHA-256 of every file of every checkpoint."""
    found = CheckpointStore(run).list()
    return {path.name: [entry["sha256"] for entry in verify(path)["files"].values()] for _, path in found}


def test_in_the_background_the_same_bytes_are_saved(tmp_path: Path) -> None:
    train(raw_config(), output=tmp_path / "plain")
    train(raw_config(background=True), output=tmp_path / "background")
    saved = content(tmp_path / "background")
    assert list(saved) == ["step-00000002", "step-00000004", "step-00000006"]
    assert saved == content(tmp_path / "plain")


def test_training_goes_on_while_the_state_of_a_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first save is held up until step 4 begins: without a thread it would wait for ever."""
    train(raw_config(4), output=tmp_path / "plain")
    going_on, write, step, steps = threading.Event(), tensors_module.write_tensors, Engine.train_step, [0]

    def slow(*arguments: Any) -> None:
        assert going_on.wait(60), "training stood still"
        write(*arguments)

    def counted(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == 4:
            going_on.set()
        return step(*arguments)

    monkeypatch.setattr(snapshot, "write_tensors", slow)
    monkeypatch.setattr(Engine, "train_step", counted)
    train(raw_config(4, background=True), output=tmp_path / "run")
    assert content(tmp_path / "run") == content(tmp_path / "plain")


def test_a_run_that_is_asked_for_a_checkpoint_saves_after_that_step_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, step, steps = tmp_path / "run", Engine.train_step, [0]

    def counted(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == 3:
            (run / "save").touch()
        return step(*arguments)

    train(raw_config(), output=tmp_path / "plain")
    monkeypatch.setattr(Engine, "train_step", counted)
    outcome = train(raw_config(), output=run)
    assert outcome.stopped == ""
    assert not (run / "save").exists()
    asked, plain = content(run), content(tmp_path / "plain")
    assert asked.pop("step-00000003")
    assert asked == plain
    assert f"{run / 'save'}: saving after this step, and training on" in capsys.readouterr().err


@pytest.mark.parametrize("background", [False, True])
def test_callbacks_hear_of_committed_checkpoints_only(tmp_path: Path, background: bool) -> None:
    train({**raw_config(background=background), "callbacks": ["watch"]}, output=tmp_path / "run")
    import acme_saving

    seen, acme_saving.Watch.seen[:] = list(acme_saving.Watch.seen), []
    assert seen == [(2, True), (4, True), (6, True)]


def test_a_save_that_fails_in_the_background_ends_the_run_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = [0], tensors_module.write_tensors

    def full(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:  # state of the second save: weights go through the module's own name
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(snapshot, "write_tensors", full)
    with pytest.raises(CheckpointError, match=r"could not write the checkpoint step-00000004.*No space left"):
        train(raw_config(100, background=True), output=tmp_path / "run")
    assert list(content(tmp_path / "run")) == ["step-00000002"]
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert 4 <= len(records) < 20, "the run ends soon, not at its hundredth step"
    assert find(tmp_path / "run").name == "step-00000002"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A tiny Llama as transformers writes it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=259)).save_pretrained(tmp_path / "weights")
    return tmp_path / "weights"


def head_only(model: dict[str, Any], steps: int = 6) -> dict[str, Any]:
    return {**raw_config(steps, trainable_only=True), "model": model, "adapter": "head-only", "schedule": "constant"}


@pytest.mark.parametrize("pretrained", [False, True], ids=["frozen from the seed", "frozen from a folder"])
def test_a_run_that_saves_trained_weights_only_resumes_to_the_same_bits(
    tmp_path: Path, weights: Path, pretrained: bool
) -> None:
    model = {"name": "llama", "weights": str(weights)} if pretrained else {"name": "llama", "n_layers": 1}
    train(head_only(model), output=tmp_path / "whole")
    train(head_only(model, steps=4), output=tmp_path / "parts")
    train({"train": {"steps": 6}}, resume=tmp_path / "parts")
    whole, parts = find(tmp_path / "whole"), find(tmp_path / "parts")
    assert set(open_model(whole / "model")) == {"lm_head.weight", "model.norm.weight"}
    assert verify(whole)["files"] == verify(parts)["files"]


def test_a_run_that_saved_trained_weights_only_can_be_used(tmp_path: Path, weights: Path) -> None:
    train(head_only({"name": "llama", "weights": str(weights)}), output=tmp_path / "run")
    values = dict(load_run(tmp_path / "run").model.named_parameters())
    trained, base = open_model(find(tmp_path / "run") / "model"), load_file(weights / "model.safetensors")
    assert torch.equal(values["lm_head.weight"], trained["lm_head.weight"]())
    assert not torch.equal(values["lm_head.weight"], base["lm_head.weight"])
    assert torch.equal(values["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


def test_other_weights_under_trained_ones_are_refused(tmp_path: Path, weights: Path) -> None:
    train(head_only({"name": "llama", "weights": str(weights)}, steps=2), output=tmp_path / "run")
    file = weights / "model.safetensors"
    flipped = bytearray(file.read_bytes())
    flipped[-1] ^= 1
    file.write_bytes(bytes(flipped))
    for action in (lambda: train({"train": {"steps": 4}}, resume=tmp_path / "run"), lambda: load_run(tmp_path / "run")):
        with pytest.raises(CheckpointError, match=r"weights under them have changed since: model\.safetensors"):
            action()


def test_a_request_that_comes_with_the_end_of_a_run_is_not_one_for_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, step = tmp_path / "run", Engine.train_step

    def requested(*arguments: Any) -> Any:
        (run / "save").touch()
        return step(*arguments)

    monkeypatch.setattr(Engine, "train_step", requested)
    raw = raw_config()
    outcome = train({**raw, "train": {**raw["train"], "max_minutes": 1e-6}}, output=run)
    assert "max_minutes" in outcome.stopped
    assert (run / "checkpoints" / f"step-{outcome.steps:08d}").is_dir()
    assert not (run / "save").exists()
