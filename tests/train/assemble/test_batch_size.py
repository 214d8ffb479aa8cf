"""``train.micro_batch_size: auto``: the largest that fits, the same rows a step, and a run like one that was given it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))  # for the worker, which runs in processes of its own too

from batch_size_worker import LAYOUTS, hold, raw_config

from mt_core import MtError
from mt_core.nn import Block
from mt_train import train
from mt_train.checkpoint.store import CheckpointStore, verify
from mt_train.cli.train import main as mt_train
from mt_train.engine.engine import Engine


@pytest.fixture(scope="module", autouse=True)
def less_to_search() -> None:
    """Each size that is tried ends with a search for garbage, which need not look at what was imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``holds(most)``: blocks are out of memory above so many rows."""
    monkeypatch.setattr(Block, "forward", Block.forward)
    return hold


def content(run: Path) -> dict[str, str]:
    """SHA-256 of weights, moments and random states of the last checkpoint."""
    _, path = max(CheckpointStore(run).list())
    return {name: entry["sha256"] for name, entry in verify(path)["files"].items()}


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stage", [0, 2])
def test_the_run_is_that_of_the_largest_size_that_fits(
    holds: Any, stage: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holds(6)
    train(raw_config("auto", 24, {"zero_stage": stage}), output=tmp_path / "auto")
    said = capsys.readouterr().err
    assert "train.micro_batch_size=auto: 6 rows at a time (8 do not fit), 4 times a step" in said
    train(raw_config(6, 24, {"zero_stage": stage}), output=tmp_path / "given")
    assert losses(tmp_path / "auto") == losses(tmp_path / "given")
    assert content(tmp_path / "auto") == content(tmp_path / "given")
    kept = yaml.safe_load((tmp_path / "auto/run.yaml").read_text())["train"]
    assert (kept["micro_batch_size"], kept["global_batch_size"]) == (6, 24)
    about = json.loads((tmp_path / "auto/about.json").read_text())
    assert "1 rank × 6 rows × 4 micro-batches = 24 rows a step" in about["layout"]
    assert about["found"] == {"train.micro_batch_size": 6}
    assert json.loads((tmp_path / "given/about.json").read_text())["found"] == {}


def test_a_resumed_run_keeps_what_was_found(holds: Any, tmp_path: Path) -> None:
    holds(6)
    words = {"checkpoint": {"every_steps": 1, "keep_last": 9}}
    train(raw_config("auto", 24, {}, **words), output=tmp_path / "run")
    whole = content(tmp_path / "run")
    again = {"train": {"micro_batch_size": "auto"}}
    train(again, resume=tmp_path / "run/checkpoints/step-00000001")
    assert content(tmp_path / "run") == whole
    assert yaml.safe_load((tmp_path / "run/run.yaml").read_text())["train"]["micro_batch_size"] == 6


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    base = {**os.environ, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("batch_size_worker.py")), str(folder)]
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE)
        for r in range(2)
    ]
    try:
        said = [process.communicate(timeout=1500)[1].decode()[-3000:] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_that_holds_less_decides_for_all_and_nobody_waits_for_it(two: Path, name: str) -> None:
    assert yaml.safe_load((two / f"{name}-auto/run.yaml").read_text())["train"]["micro_batch_size"] == 4
    assert losses(two / f"{name}-auto") == losses(two / f"{name}-4")
    assert content(two / f"{name}-auto") == content(two / f"{name}-4")


@pytest.mark.parametrize("stage", [1, 3])
def test_nothing_is_left_of_the_engine_that_tried(stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run would have less memory than was found."""
    plain, alive, left = Engine.__init__, [], []

    def init(self: Engine, *given: Any, **options: Any) -> None:
        left.append(sum(each() is not None for each in alive))
        plain(self, *given, **options)
        alive.extend(weakref.ref(each) for each in (self, self._engine, *self.module.parameters()))

    gc.collect()
    monkeypatch.setattr(Engine, "__init__", init)
    train(raw_config("auto", 4, {"zero_stage": stage}), output=None)
    assert len(alive) > 20
    assert left == [0, 0]


def test_not_even_one_row(holds: Any) -> None:
    holds(0)
    with pytest.raises(MtError, match=r"not even one row of 32 tokens fits into memory\. Set --train.activation-check"):
        train(raw_config("auto", 4, {}), output=None)


def test_other_errors_are_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **options: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Block, "forward", broken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train(raw_config("auto", 4, {}), output=None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "micro_batch_size=auto leaves the rows of a step to the memory of a machine; set global_batch_size too"),
        (
            ["--train.global-batch-size", "8", "--nproc-per-node", "2", "--parallel.pipeline", "2"],
            "train.micro-batch-size: auto does not work in a pipeline yet. Set --train.micro-batch-size 8",
        ),
        (["--train.global-batch-size", "7", "--nproc-per-node", "2"], "7 rows do not divide into 2 ranks × 1 rows"),
    ],
)
def test_what_cannot_be_is_said_on_paper(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mt_train(["--model", "llama", "--train.micro-batch-size", "auto", "--dry-run", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_dry_run_finds_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train.micro-batch-size", "auto", "--train.global-batch-size", "8"]
    assert mt_train(["--model", "llama", "--dry-run", *words]) == 0
    said = capsys.readouterr()
    assert "found before the first step; on paper it is one" in said.err
    assert "1 rank × 1 rows × 8 micro-batches = 8 rows a step" in said.out


@pytest.mark.parametrize("wrong", ["0", "-1", "2.5", "many", "true"])
def test_a_size_is_a_number_or_auto(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mt_train(["--model", "llama", "--dry-run", "--train.micro-batch-size", wrong]) == 2
    assert (
        "train.micro-batch-size: should be a whole number from 1 to 10,000,000, or auto; got" in capsys.readouterr().err
    )
