"""Averages of weights: against torch's own, at every ZeRO stage, and what they are used for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from zero_worker import raw_config

from mt_core import CheckpointError
from mt_plugin_callbacks.averaging import EmaConfig, SwaConfig, build_ema, build_swa
from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.eval import main as mt_eval
from mt_tools.cli.export import main as mt_export
from mt_tools.cli.generate import main as mt_generate
from mt_train import load_run, train
from mt_train.checkpoint.tensors import open_model

EVERY_STEP = {"checkpoint": {"every_steps": 1, "keep_last": 9}}


def weights(run: Path, step: int, folder: str = "model") -> dict[str, Tensor]:
    tensors = open_model(run / f"checkpoints/step-{step:08d}" / folder)
    return {name: load().float() for name, load in tensors.items()}


def test_ema_is_what_torch_makes_of_the_saved_weights(runs: Any) -> None:
    run = runs.train("run", callbacks={"ema": {"decay": 0.6, "warmup": False}}, **EVERY_STEP)
    average, update = weights(run, 1), get_ema_multi_avg_fn(0.6)
    for step in range(2, 7):
        update(list(average.values()), list(weights(run, step).values()), step)
    saved = weights(run, 6, "callbacks/ema")
    for name, value in average.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-6, atol=1e-7)


def test_the_average_follows_fast_at_first(runs: Any) -> None:
    """After n updates 1 - (1 + n) / (10 + n) of the new weights are taken (TensorFlow's ``num_updates``)."""
    run = runs.train("run", steps=2, callbacks={"ema": {}}, **EVERY_STEP)
    first, second, average = weights(run, 1), weights(run, 2), weights(run, 2, "callbacks/ema")
    for name, value in average.items():
        torch.testing.assert_close(value, first[name] * 2 / 11 + second[name] * 9 / 11, rtol=1e-5, atol=1e-7)


def test_swa_is_what_torch_makes_of_the_last_weights(runs: Any) -> None:
    run = runs.train("run", callbacks={"swa": {"start": 0.5, "every_steps": 1}}, **EVERY_STEP)
    average, update = weights(run, 3), get_swa_multi_avg_fn()
    for count, step in enumerate((4, 5, 6), start=1):
        update(list(average.values()), list(weights(run, step).values()), torch.tensor(count))
    saved = weights(run, 6, "callbacks/swa")
    for name, value in average.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-6, atol=1e-7)


def test_a_run_that_is_resumed_for_longer_averages_the_last_part_of_its_new_length_alone(runs: Any) -> None:
    """The last part begins with step 2 of 4, and with step 4 of 8, which was the last of the first run."""
    run = runs.train("run", steps=4, callbacks={"swa": {"start": 0.5, "every_steps": 1}}, **EVERY_STEP)
    mean = {
        name: (weights(run, 2)[name] + weights(run, 3)[name] + weights(run, 4)[name]) / 3 for name in weights(run, 2)
    }
    for name, value in weights(run, 4, "callbacks/swa").items():
        torch.testing.assert_close(value, mean[name], rtol=1e-6, atol=1e-7)
    train({"train": {"steps": 8}}, resume=run)
    last = [weights(run, step) for step in (5, 6, 7, 8)]
    for name, value in weights(run, 8, "callbacks/swa").items():
        torch.testing.assert_close(value, sum(each[name] for each in last) / 4, rtol=1e-6, atol=1e-7)


def test_a_run_that_is_resumed_for_longer_evaluates_its_weights_until_its_new_last_part_begins(runs: Any) -> None:
    """The average of steps 2 to 4 says nothing of steps 5 to 7 of 16, whose last part begins with step 8."""
    words = {"eval": {"every_steps": 1}, "schedule": {"name": "constant", "warmup_ratio": 0.0}, **EVERY_STEP}
    run = runs.train("run", steps=4, callbacks={"swa": {"start": 0.5, "every_steps": 1}}, **words)
    train({"train": {"steps": 16}, "checkpoint": {"keep_last": 16}}, resume=run)
    plain = runs.records(runs.train("plain", steps=16, **words))
    figures = [record["eval_loss"] for record in runs.records(run)]
    assert figures[4:7] == [record["eval_loss"] for record in plain[4:7]]
    assert figures[8] != plain[8]["eval_loss"], "of the new average"
    assert not weights(run, 7, "callbacks/swa")


def test_evaluations_are_of_the_average_and_leave_training_alone(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plain = runs.train("plain")
    run = runs.train("run", callbacks={"ema": {"decay": 0.9}}, eval={"samples": 1})
    assert [r["loss"] for r in runs.records(run)] == [r["loss"] for r in runs.records(plain)]
    assert {name: sha for name, sha in runs.content(run).items() if not name.startswith("callbacks")} == runs.content(
        plain
    )
    assert runs.records(run)[-1]["eval_loss"] != runs.records(plain)[-1]["eval_loss"]
    capsys.readouterr()
    assert mt_eval(["--run", str(run), "--averaged", "ema", "--output", "none"]) == 0
    figures = capsys.readouterr().out.splitlines()[1].split()
    assert figures[:2] == ["step-00000006,", "ema"], "whose figures they are"
    assert float(figures[4]) == pytest.approx(runs.records(run)[-1]["eval_loss"], abs=1e-4)
    alone = runs.train("alone", callbacks={"ema": {"evaluate": False}})
    assert runs.records(alone) == runs.records(plain)


def test_texts_come_from_the_average_where_it_is_named(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.train("run", callbacks={"ema": {"decay": 0.999, "warmup": False}}, optimizer={"lr": 0.1})
    average = weights(run, 6, "callbacks/ema")
    loaded = dict(load_run(run, averaged="ema").model.named_parameters())
    assert all(torch.equal(loaded[name], value) for name, value in average.items())
    words = ["--run", str(run), "--prompt", "The ", "--greedy", "--max-new-tokens", "8"]
    capsys.readouterr()
    assert mt_generate([*words, "--averaged", "ema"]) == 0
    assert mt_generate(words) == 0
    with pytest.raises(CheckpointError, match="no averaged weights named 'swa'; there are: ema"):
        load_run(run, averaged="swa")


def test_the_average_is_written_as_a_folder_of_weights(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.train("run", steps=2, callbacks={"ema": {"decay": 0.9}}, **EVERY_STEP)
    assert mt_convert([str(run), str(tmp_path / "out"), "--averaged", "ema"]) == 0
    found, average = load_file(tmp_path / "out/model.safetensors"), weights(run, 2, "callbacks/ema")
    assert found.keys() == average.keys()
    assert all(torch.equal(found[name], value) for name, value in average.items())
    assert "- weights: their average, by the callback ema\n- held out: " in (tmp_path / "out/README.md").read_text()
    assert mt_convert([str(run), str(tmp_path / "plain")]) == 0
    plain = load_file(tmp_path / "plain/model.safetensors")
    assert any(not torch.equal(plain[name], value) for name, value in average.items())
    assert "- held out (of the average, by the callback ema): " in (tmp_path / "plain/README.md").read_text()
    capsys.readouterr()
    assert mt_convert([str(run), str(tmp_path / "no"), "--averaged", "swa"]) != 0
    assert "no averaged weights named 'swa'; there are: ema" in capsys.readouterr().err
    assert mt_convert([str(tmp_path / "out"), str(tmp_path / "no"), "--averaged", "ema"]) != 0
    assert not (tmp_path / "no").exists()


def test_the_average_of_an_adapter_is_exported_alone_merged_and_as_a_lora(
    runs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both halves of a pair are averaged, and the change is their product; the last step's pair gives another one."""
    assert mt_convert([str(runs.train("base", steps=1)), str(tmp_path / "weights")]) == 0
    adapter = {"name": "lora", "rank": 2, "alpha": 2}
    over = {"model": {"weights": str(tmp_path / "weights")}, "adapter": adapter, **EVERY_STEP}
    # a rate at which an average of two steps is no rounding of the last one
    run = runs.train("run", steps=2, callbacks={"ema": {"decay": 0.5}}, optimizer={"lr": 0.1}, **over)
    average, last = weights(run, 2, "callbacks/ema"), weights(run, 2)
    place = next(name for name in average if name.endswith("q_proj.lora_A")).removesuffix(".lora_A")
    pair, other = ([each[f"{place}.lora_{half}"] for half in "BA"] for each in (average, last))
    words = ["--run", str(run), "--averaged", "ema", "--output"]
    assert mt_export([*words, str(tmp_path / "own")]) == 0
    assert mt_export([*words, str(tmp_path / "lora"), "--as-lora"]) == 0
    assert mt_export([*words, str(tmp_path / "merged"), "--merge"]) == 0
    change = pair[0] @ pair[1]
    assert not torch.allclose(change, other[0] @ other[1], rtol=1e-2)
    for folder in ("own", "lora"):
        found = load_file(tmp_path / folder / "adapter_model.safetensors")
        b, a = (found[f"base_model.model.{place}.lora_{half}.weight"] for half in "BA")
        scale = json.loads((tmp_path / folder / "adapter_config.json").read_text())
        torch.testing.assert_close(b @ a * scale["lora_alpha"] / scale["r"], change, rtol=1e-4, atol=1e-6)
    base = load_file(tmp_path / "weights/model.safetensors")[f"{place}.weight"]
    merged = load_file(tmp_path / "merged/model.safetensors")[f"{place}.weight"]
    torch.testing.assert_close(merged - base, change, rtol=1e-3, atol=1e-6)
    assert "by the callback ema" in (tmp_path / "merged/README.md").read_text()
    capsys.readouterr()
    assert mt_export([*words[:3], "swa", "--output", str(tmp_path / "no")]) != 0
    assert "no averaged weights named 'swa'; there are: ema" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, needs: Callable[[str], None]) -> Path:
    """The same run at every stage on two processes, in one launch."""
    needs("mt-plugin-llama")
    folder = tmp_path_factory.mktemp("two")
    base = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("zero_worker.py")), str(folder), "2"]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE)
        for r in range(2)
    ]
    said = [process.communicate(timeout=1500)[1].decode()[-3000:] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return folder


def test_the_average_is_the_same_at_every_zero_stage(two: Path, tmp_path: Path) -> None:
    train(raw_config(1, 0), output=tmp_path / "one")
    one = weights(tmp_path / "one", 4, "callbacks/ema")
    for stage in range(4):
        average = weights(two / f"zero-{stage}", 4, "callbacks/ema")
        assert average.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(average[name], value, rtol=1e-5, atol=1e-6)


def test_in_half_precision_the_average_is_of_the_fp32_masters(two: Path) -> None:
    average, live = weights(two / "bf16", 4, "callbacks/ema"), weights(two / "bf16", 4)
    name = "lm_head.weight"
    assert not torch.equal(average[name], average[name].bfloat16().float()), "finer than bf16"
    torch.testing.assert_close(average[name], live[name], rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("options", "steps", "said"),
    [
        ({}, 5, "the average is that of one step alone, 3 of 5: lower every_steps=10"),
        ({"start": 0.0}, 5, "no step of the 5 is averaged, and there will be no average: lower every_steps=10"),
        ({"every_steps": 2}, 5, None),
        ({}, 40, None),
    ],
    ids=["one", "none", "two", "long enough"],
)
def test_a_run_too_short_for_an_average_says_so_before_its_first_step(
    options: dict[str, Any], steps: int, said: str | None
) -> None:
    context: Any = SimpleNamespace(step=0, total_steps=steps)
    control = build_swa(SwaConfig(**options)).on_run_start(context)
    assert control is None if said is None else said in control.say


def test_the_steps_to_come_are_not_listed() -> None:
    """Ten million of them took 0.4 GB in each rank."""
    tracemalloc.start()
    for step, total in ((0, 10**6), (10**6 - 1, 10**6), (10**6, 10**6)):
        assert (
            build_ema(EmaConfig()).on_run_start(SimpleNamespace(step=step, total_steps=total)) is None
            or step + 1 == total
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
