"""From Python: the same runs, the same errors, and a process as it was before."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mt_core
import mt_tools
import mt_train
from mt_core import ConfigError, MtError, UsageError
from mt_core.nn import TrainModel
from mt_train import RunConfig, check_config, load_config, train
from mt_train.cli.train import main
from mt_train.engine.engine import Engine
from mt_train.tracking.metrics import MetricsFile

RAW = {
    "model": {"name": "llama", "n_layers": 1, "dropout": 0.1},
    "train": {"steps": 3, "micro_batch_size": 2},
    "data": {"eval": 4},
}
WORDS = ["--model", "llama", "--model.n-layers", "1", "--model.dropout", "0.1", "--data.eval", "4"]
WORDS += ["--train.micro-batch-size", "2", "--train.steps"]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in MetricsFile(run / "metrics.jsonl").read()]


def state_of_the_process() -> dict[str, Any]:
    """What a run could leave behind."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fp32 products": torch.get_float32_matmul_precision(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "handlers": list(logging.getLogger("mt_core").handlers),
        "environment": dict(os.environ),
        "alarm": signal.getsignal(signal.SIGALRM),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "gradients": torch.is_grad_enabled(),
        "children": len(multiprocessing.active_children()),
        "group": torch.distributed.is_initialized(),
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "folder": Path.cwd(),
    }


def test_two_runs_in_one_process_give_what_two_commands_give(tmp_path: Path) -> None:
    train(RAW, output=None)  # the first one imports DeepSpeed, which is not undone
    before = state_of_the_process()
    first = train(RAW, output=tmp_path / "first")
    second = train(load_config(RAW, train={"seed": 5}), output=tmp_path / "second")
    assert state_of_the_process() == before
    assert main([*WORDS, "3", "--output", str(tmp_path / "a")]) == 0
    assert main([*WORDS, "3", "--train.seed", "5", "--output", str(tmp_path / "b")]) == 0
    assert losses(tmp_path / "first") == losses(tmp_path / "a")
    assert losses(tmp_path / "second") == losses(tmp_path / "b")
    assert (first.steps, first.stopped, first.last_loss) == (3, "", losses(tmp_path / "a")[-1])
    assert second.output == tmp_path / "second"


def test_a_run_that_is_stopped_in_its_evaluation_has_the_loss_of_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {**RAW, "eval": {"every_steps": 2}}
    train(raw, output=tmp_path / "whole")
    evaluate = Engine.evaluate

    def stopped(self: Engine, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *arguments)

    monkeypatch.setattr(Engine, "evaluate", stopped)
    outcome = train(raw, output=tmp_path / "run")
    assert (outcome.steps, outcome.stopped) == (2, "SIGTERM")
    assert [outcome.first_loss, outcome.last_loss] == losses(tmp_path / "whole")[:2]
    outcome = train(resume=tmp_path / "run")
    assert (outcome.steps, outcome.first_loss, outcome.last_loss) == (2, None, None), "it came to no step"


def test_whatever_fails_is_an_error_of_ours_and_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    """Before the rows, at the rows, in the middle of the steps, and in the calls that load: never ``SystemExit``."""
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    train(RAW, output=tmp_path / "run")
    loaded = mt_train.load_run(tmp_path / "run")
    before = state_of_the_process()
    rows = {"dataset": {"name": "jsonl", "path": str(tmp_path / "broken.jsonl")}}
    endless = {
        "optimizer": {"name": "adamw", "lr": 1e30},
        "train": {"steps": 30, "micro_batch_size": 2, "clip_norm": None},
    }
    calls: list[Callable[[], Any]] = [
        lambda: train({**RAW, **rows}, output=tmp_path / "rows"),
        lambda: train({**RAW, "model": {"name": "llama", "weights": str(tmp_path)}}, output=tmp_path / "weights"),
        lambda: train({**RAW, "schedule": "constant", **endless}, output=tmp_path / "endless"),
        lambda: train(RAW, output=tmp_path / "broken.jsonl"),
        lambda: train(resume=tmp_path / "nothing"),
        lambda: mt_train.load_run(tmp_path / "rows"),
        lambda: mt_train.load_run(tmp_path / "run", averaged="ema"),
        lambda: mt_train.load_adapters({"a": tmp_path}, model="llama", weights=tmp_path),
        lambda: mt_train.load_adapters({"a": tmp_path}, weights=tmp_path),
        lambda: mt_train.load_weights(tmp_path),
        lambda: mt_train.load_weights("llama", ""),
        lambda: mt_tools.generate(loaded, "x" * 9999),
        lambda: check_config({**RAW, "parallel": {"pipeline": 7}}),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(mt_core.MtError):
            call()
        assert state_of_the_process() == before, number
    mt_tools.generate(loaded, "The ", max_new_tokens=2)
    assert state_of_the_process() == before


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_run_gives_its_memory_back(stage: int) -> None:
    """DeepSpeed's hooks and caches would keep an engine, and with it the model, for as long as the process lives."""

    def models() -> int:
        gc.collect()
        return sum(isinstance(each, TrainModel) for each in gc.get_objects())

    before = models()
    train({**RAW, "parallel": {"zero_stage": stage}}, output=None)
    assert models() <= before


def test_without_a_folder_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = train(RAW, output=None)
    assert outcome.output is None
    assert outcome.eval_loss is not None
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_with_what_changes_only(tmp_path: Path) -> None:
    train(RAW, output=tmp_path / "run")
    outcome = train({"train": {"steps": 5}}, resume=tmp_path / "run")
    assert outcome.steps == 5
    assert len(losses(tmp_path / "run")) == 5
    with pytest.raises(UsageError, match="is completed; give more steps"):
        train(resume=tmp_path / "run")


def test_a_run_in_epochs_is_evaluated_and_saved_after_each_and_goes_on_with_more_of_them(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {n}"}}\n' for n in range(9)))
    often = {"eval": {"every_epochs": 1}, "checkpoint": {"every_epochs": 1, "keep_last": 9}}
    raw = {**RAW, "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")}, **often}
    raw |= {"data": {"eval": 2, "batching": "padding"}, "train": {"epochs": 2, "micro_batch_size": 2}}
    run = tmp_path / "run"
    assert train(raw, output=run).steps == 8, "7 rows in windows of 2, 2, 2 and 1"
    with pytest.raises(UsageError, match="is completed; give more steps"):
        train({"train": {"epochs": 2}}, resume=run)
    assert train({"train": {"epochs": 3}}, resume=run).steps == 12
    records = MetricsFile(run / "metrics.jsonl").read()
    assert [record["step"] for record in records if "eval_loss" in record] == [4, 8, 12]
    assert sorted(each.name for each in (run / "checkpoints").glob("step-*")) == [f"step-{n:08}" for n in (4, 8, 12)]


def test_the_default_folder_has_the_next_free_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(RAW, train={"steps": 1}, eval={"every_steps": None})
    assert train(config).output == Path("runs/llama-tiny-001")
    assert train(config).output == Path("runs/llama-tiny-002")


def test_a_config_comes_from_a_file_a_mapping_or_itself(tmp_path: Path) -> None:
    config = load_config(RAW)
    assert isinstance(config, RunConfig)
    assert load_config(config) == config
    (tmp_path / "run.yaml").write_text("model: {name: llama, n_layers: 1, dropout: 0.1}\ndata: {eval: 4}\n")
    assert load_config(tmp_path / "run.yaml", train={"steps": 3, "micro_batch_size": 2}) == config


def test_a_recipe_has_the_values_that_a_config_has_not(tmp_path: Path) -> None:
    raw = {"model": {"name": "llama", "n_layers": 1}, "dataset": "demo", "adapter": {"rank": 4}}
    for config in (load_config(raw, recipe="lora"), check_config(raw, recipe="lora")):
        assert (config.adapter.name, config.adapter.options.rank, config.optimizer.options.lr) == ("lora", 4, 2e-4)
    assert load_config(raw, recipe="lora", adapter={"rank": 2}).adapter.options.rank == 2, "changes are on top"
    short = {"steps": 2, "sequence_len": 32, "micro_batch_size": 1, "global_batch_size": 1}
    raw = {**raw, "objective": "pretrain", "train": short, "data": {"eval": None, "read_rows": 4}}
    train(raw, recipe="lora", output=tmp_path / "run")
    assert load_config(tmp_path / "run" / "run.yaml") == load_config(raw, recipe="lora")


def test_a_config_file_includes_others_and_faults_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: llama\ntrain: {steps: 7}\n")
    (tmp_path / "run.yaml").write_text("include: [base.yaml]\ntrain:\n  seed: 3\n")
    config = load_config(tmp_path / "run.yaml")
    assert (config.train.steps, config.train.seed) == (7, 3)
    (tmp_path / "run.yaml").write_text("include: [base.yaml]\ntrain:\n  stepps: 3\n")
    with pytest.raises(ConfigError, match=r"Did you mean 'steps'.* \(.*run.yaml, line 3\)"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: load_config({}, recipe="lorra"), "no recipe named 'lorra'. Did you mean 'lora'?"),
        (
            lambda: load_config(load_config({"model": "llama"}), recipe="lora"),
            "load_config(): source has every value already, a recipe none to add",
        ),
        (lambda: train(resume="x", recipe="lora"), "a run that is resumed keeps its own config; leave recipe out"),
        (lambda: train(), "train() needs a config, a recipe, or a run to resume"),
        (lambda: load_config({}, recipe=3), "load_config(): recipe is the name of a recipe, or None; got 3"),
    ],
)
def test_a_recipe_that_cannot_be_gets_one_message(call: Callable[[], object], says: str) -> None:
    with pytest.raises(MtError, match=re.escape(says)):
        call()


def test_a_layout_that_no_device_can_run_is_refused_on_paper() -> None:
    staged = {**RAW, "parallel": {"pipeline": 2}}
    assert check_config(staged, processes=2) == load_config(staged)
    with pytest.raises(ConfigError, match="1 rank does not divide into 2 stages"):
        check_config(staged)


def test_errors_are_raised_with_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        train({"model": "lama", "train": {"steps": 0}})
    assert [fault.key for fault in caught.value.faults] == ["model", "train.steps"]
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="leave out output"):
        train(resume="x", output="y")
    with pytest.raises(UsageError, match="needs a config"):
        train()


def test_the_public_names_are_complete() -> None:
    for name in mt_core.__all__:
        assert getattr(mt_core, name) is not None
    with pytest.raises(AttributeError, match="no public name 'trian'"):
        _ = mt_core.trian


def test_a_run_is_loaded_and_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text as the command gives."""
    from mt_tools.cli.generate import main as generate_command

    raw = {**RAW, "checkpoint": {"every_steps": 1}, "eval": {"every_steps": 1}}
    train(raw, output=tmp_path / "run")
    words = ["--prompt", "The ", "--greedy", "--max-new-tokens", "12"]
    capsys.readouterr()
    assert generate_command(["--run", str(tmp_path / "run"), *words]) == 0
    said = capsys.readouterr().out
    loaded = mt_train.load_run(tmp_path / "run")
    answers = mt_tools.generate(loaded, ["The ", "A "], greedy=True, max_new_tokens=12)
    assert [len(answer.ids) for answer in answers] == [12, 12]
    assert said == answers[0].text + "\n"
    assert mt_train.load_run(tmp_path / "run", checkpoint="best").max_seq_len == loaded.max_seq_len
    with pytest.raises(UsageError, match=r"no rule 'gredy'\. Did you mean 'greedy'"):
        mt_tools.generate(loaded, "x", gredy=True)
    with pytest.raises(mt_core.CheckpointError, match="holds no checkpoint"):
        mt_train.load_run(tmp_path)
