"""Rows of one's own: text files and folders, and JSON lines for pretraining and for fine-tuning."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile

SENTENCES = [f"Number {n} is followed by {n + 1}, as everybody knows who has learned to count." for n in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    for n in range(6):
        (tmp_path / "texts" / ("deep" if n % 2 else ".") / f"{n}.txt").write_text("\n".join(SENTENCES[n * 10 :][:10]))
    (tmp_path / "one.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in SENTENCES))
    pairs = [{"q": f"What comes after {n}?", "a": str(n + 1)} for n in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return tmp_path


SOURCES = {
    "one text file": ["--dataset", "text", "--dataset.path", "one.txt"],
    "a folder of texts": ["--dataset", "text", "--dataset.path", "texts"],
    "text rows": ["--dataset", "jsonl", "--dataset.path", "text.jsonl"],
    "renamed pairs": [
        *("--dataset", "jsonl", "--dataset.path", "pairs.jsonl", "--objective", "sft"),
        *("--data.columns", "{prompt: q, response: a}"),
    ],
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_on_ones_own_rows_trains_and_evaluates(
    source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = ["--model", "llama", "--train.steps", "4", "--output", "run", "--model.n-layers", "1"]
    assert main([*words, *SOURCES[source]]) == 0, capsys.readouterr().err
    records = MetricsFile(folder / "run" / "metrics.jsonl").read()
    assert records[-1]["loss"] < records[0]["loss"]
    assert math.isfinite(records[-1]["eval_loss"])
    assert "demo corpus" not in capsys.readouterr().err


def test_fine_tuning_trains_on_the_response_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = [
        "--model",
        "llama",
        "--train.steps",
        "1",
        "--output",
        "none",
        "--data.eval",
        "none",
        "--data.shuffle",
        "false",
    ]
    assert main([*words, *SOURCES["renamed pairs"]]) == 0
    shown = capsys.readouterr().out
    assert "What comes after 0?«1»" in shown
    trained = sum(len(str(n + 1)) + 1 for n in range(60))  # the answer's bytes and the end of the text
    total = sum(len(f"What comes after {n}?{n + 1}") + 2 for n in range(60))
    assert f"{total:,} tokens, {100 * trained / total:.1f}% trained on" in shown
    assert not list(folder.glob("run*"))


def test_a_config_file_says_the_same_as_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "run.yaml").write_text(
        "model: {name: llama, n-layers: 2}\ndataset: {name: text, path: one.txt}\noptimizer: {lr: 2e-3}\ntrain: {steps: 2}\n"
    )
    words = ["--model", "llama", "--model.n-layers", "2", "--dataset", "text", "--dataset.path", "one.txt"]
    assert main(["--config", "run.yaml", "--print-config"]) == 0
    from_file = capsys.readouterr().out
    assert main([*words, "--optimizer.lr", "2e-3", "--train.steps", "2", "--print-config"]) == 0
    from_words = capsys.readouterr().out

    def values(text: str) -> list[str]:
        return [line.partition("#")[0].rstrip() for line in text.splitlines()]

    assert values(from_file) == values(from_words)
    assert any(line.startswith("  lr: 0.002") and line.endswith("# run.yaml") for line in from_file.splitlines())
    (folder / "printed.yaml").write_text(from_file)
    assert main(["--config", "printed.yaml", "--print-config"]) == 0
    assert values(capsys.readouterr().out) == values(from_file)
