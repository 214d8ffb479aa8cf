"""A toy that must be won, with the commands that a user has: answers with more of one letter are better, and the model learns to write it.

DPO: a tiny Llama reads the demo corpus; it answers each prompt four times, and the share of the letter in an answer is its score. Of
prompts that DPO has not seen, the model then knows which answer has more of it, and what it writes itself has several times as much.

GRPO: the share is the reward, and at the end the model writes little else: with the defaults from random weights, and from those that have
read the corpus with all weights, with LoRA, and on two ranks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean
from typing import Any

import pytest

from mt_tools.cli.convert import main as mt_convert
from mt_tools.cli.generate import main as mt_generate
from mt_train.cli.train import main as mt_train

LETTER, TOKENS = b"e", 24
"""Letter that is rewarded, and bytes of an answer. One in twelve bytes is this one before."""
PROMPTS, HELD_OUT, ANSWERS = 240, 48, 4
SEEDS = [pytest.param(0, marks=pytest.mark.long), *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]


def share(answer: str) -> float:
    """Return how much of an answer is the letter."""
    text = answer.encode()[:TOKENS]
    return text.count(LETTER) / max(len(text), 1)


def write_prompts(file: Path, seed: int) -> list[str]:
    """Write pieces of the corpus, some twenty characters each."""
    draw, texts = random.Random(seed), [text for _, text in sorted(topics.items()) if len(text) > 400]

    def piece() -> str:
        text = draw.choice(texts)
        begin = draw.randrange(len(text) - 40)
        return text[begin : begin + draw.randint(12, 24)]

    prompts = [piece() for _ in range(PROMPTS)]
    write(file, [{"prompt": prompt} for prompt in prompts for _ in range(ANSWERS)])
    return prompts


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for all that the commands read and write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MT_CACHE", "cache")
    return tmp_path


def run(command: Callable[[list[str]], int], words: str) -> None:
    assert command(words.split()) == 0, words


def generate(model: str, prompts: str, seed: int) -> list[str]:
    """The answers of a model to a file of prompts, as long as the others."""
    words = f"{model} --prompts {prompts} --out answers.jsonl --overwrite --batch-size 64 --seed {seed}"
    run(mt_generate, f"{words} --max-new-tokens {TOKENS}")
    return [row["text"] for row in read(Path("answers.jsonl"))]


def train_base(few: str) -> None:
    """Let a tiny Llama read the demo corpus, and write it as ``my-llama``."""
    run(mt_train, f"--model llama --train.steps 200 --train.micro-batch-size 4 {few} --output base")
    run(mt_convert, "base my-llama")


@pytest.mark.parametrize("seed", SEEDS)
def test_dpo_learns_which_answers_are_better_and_to_write_such_answers(in_folder: Path, seed: int) -> None:
    few = f"--train.seed {seed} --train.sequence-len 128 --eval.samples 0"
    train_base(few)
    prompts = write_prompts(in_folder / "prompts.jsonl", seed)
    texts = generate("--model llama --weights my-llama", "prompts.jsonl", seed)
    scored = [
        {"prompt": prompt, "answers": [{"text": text, "score": share(text)} for text in texts[first : first + ANSWERS]]}
        for prompt, first in zip(prompts, range(0, len(texts), ANSWERS), strict=True)
    ]
    write(in_folder / "pairs.jsonl", scored[HELD_OUT:])
    write(in_folder / "held-out.jsonl", scored[:HELD_OUT])

    run(
        mt_train,
        f"--model llama --model.weights my-llama --objective dpo --dataset jsonl --dataset.path pairs.jsonl {few}"
        " --data.eval held-out.jsonl --optimizer.lr 1e-3 --train.steps 36 --train.micro-batch-size 16 --output dpo",
    )
    records = read(in_folder / "dpo/metrics.jsonl")
    assert records[0]["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert records[-1]["eval_reward_accuracy"] >= 0.95

    write(in_folder / "unseen.jsonl", [{"prompt": prompt} for prompt in prompts[:HELD_OUT] for _ in range(ANSWERS)])
    before, after = mean(map(share, texts)), mean(map(share, generate("--run dpo", "unseen.jsonl", seed + 10)))
    assert before < 0.12
    assert after > 3 * before, "three seeds had 4 to 5 times as much"


GRPO = (
    "--model llama --objective grpo --rewards pattern --rewards.pattern.pattern e --rewards.pattern.count true --dataset jsonl"
    " --dataset.path prompts.jsonl --data.eval none --train.steps 60 --output grpo"
)
WAYS = {
    "full": ("--optimizer.lr 3e-3", 0.9),
    "lora": ("--adapter lora --optimizer.lr 1e-2", 0.7),
    "zero 2 on two ranks": ("--optimizer.lr 3e-3 --parallel.zero-stage 2 --nproc-per-node 2", 0.9),
}
"""Options, and the least reward at the end: under LoRA the head and the last norm stay, which bounds how likely a letter can be."""


def rewards(words: str) -> list[float]:
    """Return the reward of each iteration of a run."""
    run(mt_train, f"{GRPO} {words}")
    return [record["reward"] for record in read(Path("grpo/metrics.jsonl"))]


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_with_its_defaults_learns_to_write_the_letter(in_folder: Path, seed: int) -> None:
    """A rise of 0.2 is what is promised; it is 0.99. A shorter one is in test_grpo.py."""
    write(in_folder / "prompts.jsonl", [{"prompt": f"{number}: "} for number in range(12)])
    found = rewards(f"--optimizer.lr 3e-3 --train.seed {seed}")
    assert mean(found[:5]) < 0.1
    assert mean(found[-5:]) > mean(found[:5]) + 0.2


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_grpo_makes_a_model_that_has_read_a_corpus_write_the_letter(in_folder: Path, way: str) -> None:
    train_base("--train.seed 0 --train.sequence-len 128 --eval.samples 0")
    write_prompts(in_folder / "prompts.jsonl", 0)
    words, least = WAYS[way]
    found = rewards(f"--model.weights my-llama --objective.max-new-tokens {TOKENS} --train.seed 0 {words}")
    assert found[0] < 0.15
    assert mean(found[-5:]) > least
