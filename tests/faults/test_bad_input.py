"""A checkpoint of another run, another tokenizer or other data is refused with the difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def truth(runs: Any) -> Any:
    return runs.truth(3)


def refusal(runs: Any, run: Path) -> str:
    """What a resumed run says, which must not make a step."""
    code, attempt = runs.run(["--resume", str(run), "--train.steps", "4"])
    assert code in (1, 2), attempt.err
    assert "step " not in attempt.out
    assert "Traceback" not in attempt.err
    assert attempt.err.count("error:") == 1, attempt.err
    return str(attempt.err)


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(runs: Any, truth: Any, tmp_path: Path) -> None:
    """Of the same model even: what defines a run is in its checkpoints."""
    other, run = tmp_path / "other", shutil.copytree(truth.run, tmp_path / "run")
    changes = {"train.steps": 1, "train.seed": 9, "optimizer.lr": 0.5, "checkpoint.keep-last": 7}
    code, attempt = runs.run(runs.words(other, changes))
    assert code == 0, attempt.err
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    said = refusal(runs, run)
    assert "2 faults" in said, "what may change is no difference"
    assert f"train.seed: is 0 in {run / 'run.yaml'}, and 9 in the checkpoint." in said
    assert f"optimizer.lr: is 0.003 in {run / 'run.yaml'}, and 0.5 in the checkpoint." in said


@pytest.mark.parametrize("what", ["tokenizer", "rows"])
def test_another_tokenizer_is_told_from_other_rows(runs: Any, tmp_path: Path, what: str) -> None:
    rows, file, run = tmp_path / "rows.jsonl", tmp_path / "tokenizer.json", tmp_path / "run"
    shutil.copy(runs.rows, rows)
    words = sorted({word for line in rows.read_text().splitlines() for word in json.loads(line)["text"].split()})
    words.append("[UNK]")
    write_tokenizer(file, words)
    tokenizer = {"tokenizer": "huggingface", "tokenizer.path": file, "model.vocab-size": 32, "eval.samples": 0}
    code, attempt = runs.run(runs.words(run, {"train.steps": 2, "dataset.path": rows, **tokenizer}))
    assert code == 0, attempt.err
    if what == "tokenizer":
        write_tokenizer(file, list(reversed(words)))
        assert "the tokenizer is not as in the run that saved the checkpoint" in refusal(runs, run)
        write_tokenizer(file, words)
    else:
        text = rows.read_text()
        rows.write_text(text.replace("model", "words", 1))
        assert "the rows are not as in the run that saved the checkpoint: as many, and others" in refusal(runs, run)
        rows.write_text(text)
    code, attempt = runs.run(["--resume", str(run), "--train.steps", "3"])
    assert code == 0, attempt.err


def write_tokenizer(path: Path, words: list[str]) -> None:
    """One word, one token."""
    model = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(words)}, "unk_token": "[UNK]"}
    content = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    rest = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    path.write_text(json.dumps(content | rest))
