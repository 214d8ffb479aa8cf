"""What the model writes at each evaluation, and that writing it changes nothing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mt_tools import generate
from mt_train import load_run, train
from mt_train.tracking.metrics import MetricsFile

RAW: dict[str, Any] = {
    "model": {"name": "llama", "n_layers": 1, "dropout": 0.1},
    "train": {"steps": 4, "micro_batch_size": 2},
    "checkpoint": {"every_steps": 2},
}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in MetricsFile(run / "metrics.jsonl").read()]


def raw_config(**evaluation: Any) -> dict[str, Any]:
    return {**RAW, "eval": {"every_steps": 2, **evaluation}}


def test_each_evaluation_continues_the_same_prompts_and_training_goes_on_as_without(tmp_path: Path) -> None:
    train(raw_config(samples=3, sample_tokens=9), output=tmp_path / "with")
    train(raw_config(samples=0), output=tmp_path / "without")
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    assert not (tmp_path / "without" / "samples.jsonl").exists()
    written = lines(tmp_path / "with")
    assert [line["step"] for line in written] == [2, 2, 2, 4, 4, 4]
    assert [line["prompt"] for line in written[:3]] == [line["prompt"] for line in written[3:]]
    assert written[0]["text"] != written[3]["text"]
    assert all(0 < len(line["expected"].encode()) <= 9 for line in written)


def test_a_run_that_goes_on_has_each_sample_once(tmp_path: Path) -> None:
    train(raw_config(), output=tmp_path / "run")
    before = lines(tmp_path / "run")
    with (tmp_path / "run" / "samples.jsonl").open("a") as file:
        file.write('{"step": 4, "row')
    (tmp_path / "run" / "completed").unlink()
    train({"train": {"steps": 6}}, resume=tmp_path / "run" / "checkpoints" / "step-00000002")
    after = lines(tmp_path / "run")
    assert after[:2] == before[:2]
    assert [line["step"] for line in after] == [2, 2, 4, 4, 6, 6]


def test_a_prompt_of_the_rows_own_is_used_and_compared_with_its_response(tmp_path: Path) -> None:
    rows = [{"prompt": f"ask {i}: ", "response": f"answer {i}"} for i in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = raw_config() | {"dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")}, "objective": "sft"}
    train(config, output=tmp_path / "run")
    for line in lines(tmp_path / "run"):
        number = line["prompt"].removeprefix("ask ").removesuffix(": ")
        assert line["expected"] == f"answer {number}"


def test_a_run_of_conversations_shows_first_turns_and_is_talked_to_as_it_was_trained(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": text}
        for role, text in (("user", "I am Ann."), ("assistant", "Hello!"), ("user", "Who am I?"), ("assistant", "Ann."))
    ]
    (tmp_path / "rows.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 40)
    config = raw_config(samples=1, sample_tokens=30) | {
        "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")},
        "objective": "sft",
        "data": {"template": "chatml", "system": "Be kind."},
        "model": {"name": "llama", "n_layers": 1},
        "train": {"steps": 40, "micro_batch_size": 2},
    }
    train(config, output=tmp_path / "run")
    line = lines(tmp_path / "run")[-1]
    assert line["prompt"].startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nI am Ann.<|im_end|>\n")
    assert line["prompt"].endswith("<|im_start|>assistant\n")
    assert (line["expected"], line["text"]) == ("Hello!", "Hello!")
    loaded = load_run(tmp_path / "run")
    replies = generate(loaded, [turns[:1], turns[:3]], max_new_tokens=30, greedy=True)
    assert [(reply.text, reply.finish) for reply in replies] == [("Hello!", "stop"), ("Ann.", "stop")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("plain")
    train(raw_config(), output=folder / "run")
    return lines(folder / "run")


@pytest.mark.parametrize("change", [{"parallel": {"zero_stage": 3}}, {"train": {**RAW["train"], "compile": True}}])
def test_at_zero_3_and_with_compiled_blocks_the_texts_are_the_same(
    change: dict[str, Any], plain: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # inductor takes a minute
    train(raw_config() | change, output=tmp_path / "run")
    assert lines(tmp_path / "run") == plain


def test_no_texts_are_written_without_held_out_rows_or_a_language_head_that_is_trained(tmp_path: Path) -> None:
    train(raw_config() | {"data": {"eval": None}}, output=tmp_path / "run")
    assert not (tmp_path / "run" / "samples.jsonl").exists()
    rows = [{"prompt": f"{i} ", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = {"dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")}, "objective": "reward"}
    train({**raw_config(), **scores, "data": {"eval": 3}}, output=tmp_path / "scores")
    assert not (tmp_path / "scores" / "samples.jsonl").exists()
