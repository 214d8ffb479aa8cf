"""One command, several seeds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from mt_core.errors import UsageError
from mt_train.cli.seeds import describe, final_figures, parse_seeds
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

WORDS = ["--model", "llama", "--model.n-layers", "1", "--train.steps", "3", "--train.micro-batch-size", "2"]


def test_each_seed_runs_as_it_would_alone_and_the_figures_are_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--train.seeds", "1,2", "--output", str(tmp_path / "both")]) == 0
    said = capsys.readouterr().out
    assert main([*WORDS, "--train.seed", "2", "--output", str(tmp_path / "alone")]) == 0
    losses = []
    for seed in (1, 2):
        records = MetricsFile(tmp_path / "both" / f"seed-{seed}" / "metrics.jsonl").read()
        losses.append(records[-1]["loss"])
    alone = MetricsFile(tmp_path / "alone" / "metrics.jsonl").read()
    assert losses[1] == alone[-1]["loss"]
    assert losses[0] != losses[1]
    summary = json.loads((tmp_path / "both" / "seeds.json").read_text())["seeds"]
    assert summary["2"] == {"loss": alone[-1]["loss"], "eval_loss": alone[-1]["eval_loss"]}
    assert f"loss            {statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}" in said


def test_seeds_come_from_a_config_file_too_and_a_finished_one_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("train: {seeds: [4, 5], steps: 1}\n")
    words = ["--config", str(tmp_path / "run.yaml"), "--output", str(tmp_path / "out"), "--resume", "auto"]
    words += [
        "--model",
        "llama",
        "--model.n-layers",
        "1",
        "--train.micro-batch-size",
        "1",
        "--eval.every-steps",
        "none",
    ]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.count("is completed") == 2


def test_seeds_are_whole_numbers() -> None:
    assert parse_seeds("1, 2,3") == parse_seeds([1, 2, 3]) == [1, 2, 3]
    assert parse_seeds(7) == [7]


@pytest.mark.parametrize("given", [[], (), "", ","])
def test_no_seed_at_all_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match=r"train.seeds is .* give .*for instance 1,2,3"):
        parse_seeds(given)


def test_a_seed_that_ended_without_a_number_is_shown_and_counts_in_no_mean(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0, "eval_loss": 2.0}\n{"step": 2, "loss": null}\n')
    without = final_figures(tmp_path)
    assert without == {"loss": None, "eval_loss": 2.0}
    lines = describe({1: without, 2: {"loss": 1.0, "eval_loss": 4.0}, 3: {"loss": 2.0, "eval_loss": 3.0}}).splitlines()
    assert lines[1].split() == ["loss", "1.5000", "±", "0.7071", "(no", "number,", "1.0000,", "2.0000)"]
    assert lines[2].split() == ["eval_loss", "3.0000", "±", "1.0000", "(2.0000,", "4.0000,", "3.0000)"]
    assert describe({1: {"loss": None}}).splitlines()[1].split() == ["loss", "no", "number", "(no", "number)"]


def test_one_seed_has_no_deviation() -> None:
    assert "0.5000 ± 0.0000" in describe({3: {"loss": 0.5}})


def test_the_config_of_several_seeds_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "llama", "--train.seeds", "3,4", "--print-config"]) == 0
    assert capsys.readouterr().out.count("seed: ") == 1
