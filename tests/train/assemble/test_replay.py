"""Steps of a run that are computed again, and compared with what it recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mt_core.events import CallbackContext
from mt_core.protocols import StepRecord
from mt_train.assemble.replay import Replay
from mt_train.cli.train import main

LINE = """
--model llama --model.n-layers 1 --model.dim 32 --model.n-heads 2 --model.n-kv-heads 2 --model.dropout 0.1
--train.steps 6 --train.global-batch-size 4 --train.micro-batch-size 2 --train.sequence-len 64
--data.eval none --checkpoint.every-steps 2 --checkpoint.keep-last 9
"""
WORDS = LINE.split()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed") / "run"
    assert main([*WORDS, "--output", str(folder)]) == 0
    return folder


def contents(run: Path) -> dict[str, Any]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_steps_that_are_computed_again_are_the_recorded_ones_and_nothing_is_written(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    assert main(["--resume", str(run / "checkpoints/step-00000002"), "--replay", "3"]) == 0
    said = capsys.readouterr().out
    assert f"steps 3 to 5 of {run} were computed again: loss, grad_norm, lr, tokens are the recorded ones" in said
    assert contents(run) == before


def test_the_first_step_that_differs_ends_it_with_both_values(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "metrics.jsonl"
    before = file.read_text()
    records = [json.loads(line) for line in before.splitlines()]
    loss = records[3]["loss"]
    records[3]["loss"] = loss + 1e-9
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    try:
        assert main(["--resume", str(run / "checkpoints/step-00000002"), "--replay", "9"]) == 1
    finally:
        file.write_text(before)
    said = capsys.readouterr()
    assert f"step 4: loss {loss!r} (recorded {loss + 1e-9!r})" in said.err
    assert "were computed again: " not in said.out


def test_a_replay_that_ends_early_says_only_what_it_has_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--resume", str(run / "checkpoints/step-00000002"), "--replay", "4", "--train.max-minutes", "1e-5"]
    assert main(words) == 75
    said = capsys.readouterr().out
    assert f"step 3 of {run} was computed again" in said
    assert "it ended early, and 3 more of 4 steps were not compared" in said


def test_the_record_of_the_checkpoints_own_step_is_not_compared(run: Path) -> None:
    """It is told again where a signal had cut the evaluation of that step short."""
    replay = Replay(run / "checkpoints/step-00000002", 1)
    zeros = dict.fromkeys(["loss", "lr", "grad_norm", "tokens_per_second", "memory_gib", "data_wait_seconds"], 0.0)
    context = CallbackContext(step=2, total_steps=6, output=None, record=StepRecord(step=2, tokens=0, **zeros))
    assert not replay.on_step_end(context).stop
    assert not replay.difference
    assert (
        replay.describe()
        == f"no step of {run} was computed again; it ended early, and 1 more of 1 steps were not compared"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume", "{run}", "--replay", "2"], "has no record behind step 6; name an earlier checkpoint"),
        (["--resume", "{run}", "--replay", "no"], "--replay takes a number of optimizer steps, 1 or more, got 'no'"),
        (["--resume", "{run}/checkpoints/step-00000002", "--replay", "2", "--restart", "1"], "leave out --restart"),
        (["--model", "llama", "--replay", "2"], "--replay goes with --resume RUN/checkpoints/step-NNNNNNNN"),
    ],
)
def test_what_has_nothing_to_compare_with_is_refused(
    run: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(run=run) for word in words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.long
def test_two_ranks_compare_what_two_ranks_have_recorded(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "mt_train.cli.train"]
    for words in ([*WORDS, "--output", "run"], ["--resume", "run/checkpoints/step-00000002", "--replay", "2"]):
        done = subprocess.run(
            [*line, *words, "--nproc-per-node", "2"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "steps 3 to 4 of run were computed again" in done.stdout
