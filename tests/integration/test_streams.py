"""Runs on a stream: what is refused, and that one which is stopped and resumed ends with the bits of one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.data import main as data_main
from mt_tools.cli.eval import main as eval_main
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

TEXTS = [f"Number {n} is followed by {n + 1}, as everybody knows who has learned to count." for n in range(200)]
MODEL = ["--model", "llama", "--model.n-layers", "1"]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run on this stream needs."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    Path("own.jsonl").write_text("".join(json.dumps({"text": f"{text} Yes."}) + "\n" for text in TEXTS[:5]))
    return [*MODEL, "--dataset", "stream", "--dataset.path", "rows.jsonl", "--data.shuffle-buffer", "37"]


def losses(run: str) -> list[Any]:
    return [(record["loss"], record.get("eval_loss")) for record in MetricsFile(Path(run) / "metrics.jsonl").read()]


def test_a_resumed_run_equals_one_that_was_never_stopped_bit_for_bit(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--data.eval", "9", "--train.steps", "14", "--train.sequence-len", "128", "--eval.every-steps", "5"]
    assert main([*words, "--output", "whole"]) == 0
    shown = capsys.readouterr().out
    assert "training   the beginning of a stream: 37 rows" in shown
    assert "held out   9 rows" in shown
    assert main([*words, "--output", "run", "--checkpoint.every-steps", "5", "--checkpoint.keep-last", "9"]) == 0
    place = json.loads(Path("run/checkpoints/step-00000005/manifest.json").read_text())["position"]
    assert place["row"] > 0, "in the middle of a buffer"
    assert main(["--resume", "run/checkpoints/step-00000005"]) == 0
    assert losses("run") == losses("whole")
    assert len(losses("whole")) == 14
    assert "of the stream, read in this run" in capsys.readouterr().out
    evaluate = ["--run", "run", "--output", "none"]
    assert eval_main(evaluate) == 0
    assert eval_main([*evaluate, "--dataset", "stream", "--dataset.path", "rows.jsonl", "--data.read-rows", "9"]) == 0
    held_out, *_, first_rows = capsys.readouterr().out.split("step-00000014")[1:]
    assert held_out.split()[2:7] == first_rows.split()[1:6], "the same rows"


def test_what_needs_the_number_of_rows_is_refused_at_once_with_what_to_do(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--output", "none"]) == 2
    error = capsys.readouterr().err
    assert "train.steps: is not set, and dataset stream is a stream, which has no length" in error
    assert "data.eval: 0.05 is a share, and dataset stream is a stream, which has no length. Set --data.eval" in error


@pytest.mark.parametrize("held_out", ["none", "own.jsonl", "9"])
def test_a_run_on_paper_reads_the_beginning_alone(
    held_out: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--data.eval", held_out, "--train.steps", "14", "--data.cache", "tokens"]
    assert main([*words, "--dry-run"]) == 0
    captured = capsys.readouterr()
    rows = {"none": "nothing", "own.jsonl": "5 rows", "9": "9 rows"}[held_out]
    assert f"held out   {rows}" in captured.out
    assert "14 optimizer steps, of a stream, whose length nobody knows" in captured.out
    assert captured.err.count("data.cache is of no use: dataset 'stream' is a stream") == 1
    assert not Path("tokens").exists()


def test_inspect_shows_the_beginning_and_the_bad_rows_in_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text('{"text": "good"}\n{"text": }\n' * 30)
    words += ["--data.eval", "4", "--json"]
    assert data_main(["inspect", *words]) == 1
    captured = capsys.readouterr()
    about = json.loads(captured.out)
    assert about["splits"]["train"]["is_prefix"]
    assert {name: split["rows_read"] for name, split in about["splits"].items()} == {"train": 37, "held_out": 4}
    assert about["rows_read"] == about["rows_kept"] + about["rows_dropped"]["bad row"] == 41
    assert "20 bad rows, which stop mt-train" in captured.err
