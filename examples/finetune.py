"""Fine-tune a model on questions and answers, and ask it: the whole way in Python.

    python examples/finetune.py

It makes its rows, trains the smallest Llama on them from scratch (a few seconds on a CPU), and counts right
answers at step 20 and at the end. Set WEIGHTS to a folder of pretrained weights to start from those; the tokenizer is then
the folder's own.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from mt_tools import generate
from mt_train import load_run, train

WEIGHTS: str | None = None
CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Peru": "Lima",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Cuba": "Havana",
    "Kenya": "Nairobi",
}


def question(country: str) -> str:
    return f"What is the capital of {country}? "


def count_right(run: Path, checkpoint: str) -> int:
    """Return how many questions a checkpoint answers, always with its likeliest token."""
    loaded = load_run(run, checkpoint=checkpoint)
    answers = generate(loaded, [question(country) for country in CAPITALS], greedy=True, max_new_tokens=12)
    for country, answer in zip(CAPITALS, answers, strict=True):
        print(f"  {question(country)}{answer.text!r}")
    return sum(answer.text == capital for answer, capital in zip(answers, CAPITALS.values(), strict=True))


def main(folder: Path) -> None:
    rows = [{"prompt": question(country), "response": capital} for country, capital in CAPITALS.items()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = {
        "model": {"name": "llama"} | ({"weights": WEIGHTS} if WEIGHTS else {}),
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "data": {"eval": None},
        "optimizer": {"name": "adamw", "lr": 2e-5 if WEIGHTS else 3e-3},
        "train": {"steps": 120, "sequence_len": 64, "micro_batch_size": 8},
        "checkpoint": {"every_steps": 20, "keep_last": 6},
        "log": {"every_steps": 20},
    }
    outcome = train(config, output=folder / "run")
    assert outcome.output is not None, "output is a folder here"
    print(f"loss {outcome.first_loss:.2f} → {outcome.last_loss:.2f} nats per token in {outcome.seconds:.0f} s")
    for checkpoint in ("20", "last"):
        right = count_right(outcome.output, checkpoint)
        print(f"checkpoint {checkpoint}, right answers: {right} of {len(CAPITALS)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
