"""mt-score: scores of the answers in a file, the best of each row, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mt_core import DataError, WeightsError, conversation
from mt_plugin_alignment.objectives.shapes import read_answers
from mt_plugin_alignment.score_command import main
from mt_plugin_alignment.scoring import Scorer, best_row, score_rows
from mt_train import load_run, train

ROWS = [
    {"prompt": "say 1 -> ", "responses": ["it is 1", "zqzq", "it"]},
    {"prompt": "say 2 -> ", "response": "it is 2"},
    {"prompt": "say 3 -> ", "chosen": "it is 3", "rejected": "zqzqzq"},
    {"prompt": [{"role": "user", "content": "say 4"}], "chosen": "zq", "rejected": "it is 4"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    lines = [{"prompt": f"say {n} -> ", "chosen": f"it is {n}", "rejected": "zq" * (1 + n % 5)} for n in range(32)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "objective": "reward",
        "dataset": {"name": "jsonl", "path": str(folder / "pairs.jsonl")},
        "data": {"eval": None, "cache": "none", "template": "chatml"},
        "train": {"steps": 20, "sequence_len": 192, "micro_batch_size": 4},
        "optimizer": {"name": "adamw", "lr": 1e-2},
    }
    train(raw, output=folder / "run")
    return folder


def score(folder: Path, *words: str) -> int:
    return main(["--run", str(folder / "run"), "--rows", str(folder / "rows.jsonl"), *words])


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_answer_has_its_score_and_the_best_of_each_row_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, best = folder / "scores.jsonl", folder / "best.jsonl"
    assert score(folder, "--out", str(out), "--best", str(best), "--batch-size", "3") == 0
    found = read(out)
    assert [len(each["scores"]) for each in found] == [3, 1, 2, 2]
    assert [each["best"] for each in found] == [
        max(range(len(s)), key=s.__getitem__) for s in (each["scores"] for each in found)
    ]
    assert [each.get("correct") for each in found] == [None, None, True, False]
    assert found[0]["id"].endswith("rows.jsonl:1")
    first, _, _, fourth = read(best)
    assert first["prompt"] == "say 1 -> "
    assert first["response"] == ROWS[0]["responses"][found[0]["best"]]  # type: ignore[index]
    assert first["score"] == max(found[0]["scores"])
    assert [turn["content"] for turn in fourth["messages"]] == ["say 4", "it is 4"]
    assert "4 rows, 8 answers, mean score" in (said := capsys.readouterr().err)
    assert "the chosen answer is better in 1 of 2 pairs (50.0%)" in said


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "user", "content": "say 1"}]},
        {"messages": [{"role": "user", "content": "say 1"}, {"role": "assistant", "content": "its own"}]},
        {"prompt": [{"role": "user", "content": "say 1"}]},
        {"instruction": "say 1", "output": "its own"},
        {"prompt": "say 1", "response": "its own"},
        {"conversations": [{"from": "human", "value": "say 1"}, {"from": "gpt", "value": "its own"}]},
    ],
)
def test_listed_answers_are_scored_after_a_prompt_of_any_shape(asked: dict[str, Any]) -> None:
    """An answer that the row has beside them is none of them."""
    seen: list[list[tuple[str, str]]] = []

    class Counting:
        def score(self, conversations: Sequence[Any], *, batch_size: int) -> list[float]:
            seen.extend([(turn["role"], turn["content"]) for turn in each] for each in conversations)
            return [float(number) for number in range(len(conversations))]

    row = {"id": "rows:1", **asked, "responses": ["it is 1", {"text": "zq"}]}
    (found,) = score_rows(Counting(), [row])  # type: ignore[arg-type]
    assert seen == [[("user", "say 1"), ("assistant", said)] for said in ("it is 1", "zq")]
    best = best_row(row, found)
    assert best.get("response", [*best.get("messages", [{}])][-1].get("content")) == "zq"


def test_a_prompt_with_choices_that_is_written_out_beside_answers_stands_as_it_is() -> None:
    asked = {"id": "rows:1", "prompt": "x or y?\nA. x\nB. y\nAnswer:", "choices": ["x", "y"], "answer": 1}
    (turn,) = read_answers({**asked, "responses": ["A", "B"]}).prompt
    assert turn["content"] == asked["prompt"]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"prompt": [{"role": "user", "content": "say 1"}], "tools": TOOLS}, ["messages", "tools"]),
        ({"prompt": "say 1", "tools": TOOLS}, ["messages", "tools"]),
        ({"instruction": "say", "input": "1", "system": "Be brief."}, ["system", "instruction", "input", "output"]),
        ({"instruction": "say", "input": "1", "history": [["a", "b"]]}, ["history", "instruction", "input", "output"]),
    ],
)
def test_a_best_row_has_tools_and_input_where_sft_finds_them(asked: dict[str, Any], fields: list[str]) -> None:
    row = {"id": "rows:1", **asked, "responses": ["it is 1", "zq"]}
    best = best_row(row, {"best": 1, "scores": [0.0, 2.0]})
    assert list(best) == [*fields, "score"]
    scored = read_answers(row)
    turns = [
        {key: value for key, value in turn.items() if key != "raw"} for turn in (*scored.prompt, *scored.answers[1])
    ]
    read = [
        {key: value for key, value in turn.items() if key != "raw"} for turn in conversation({"id": "best:1", **best})
    ]
    assert read == turns


def test_scores_do_not_depend_on_who_is_scored_beside_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score(folder, "--batch-size", "1") == 0
    alone = [json.loads(line)["scores"] for line in capsys.readouterr().out.splitlines()]
    assert score(folder, "--batch-size", "8") == 0
    together = [json.loads(line)["scores"] for line in capsys.readouterr().out.splitlines()]
    assert [*chain(*alone)] == pytest.approx([*chain(*together)], abs=1e-6)


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    class Broken:
        def score(self, conversations: Sequence[Any], *, batch_size: int) -> list[float]:
            return [1.0, *[math.nan] * (len(conversations) - 1)]

    rows = [{"id": "rows:1", **ROWS[1]}, {"id": "rows:2", **ROWS[0]}]
    with pytest.raises(
        WeightsError, match=r"rows:2: the reward model's score of answer 1 is nan, .* no answer is the best"
    ):
        list(score_rows(Broken(), rows))  # type: ignore[arg-type]


def test_a_place_of_media_is_refused_where_the_model_has_learned_to_read_them(folder: Path) -> None:
    """As text all images would have one score; a model without encoders has learned that text."""
    loaded, asked = (
        load_run(folder / "run"),
        {"id": "rows:1", "prompt": "<image> What?", "responses": ["it is 1", "zq"]},
    )
    assert len(next(score_rows(Scorer(loaded), [asked]))["scores"]) == 2
    seeing = Scorer(replace(loaded, media_kinds=frozenset({"image"})))
    with pytest.raises(DataError, match=r"rows:1: answer 1: the conversation has <image>, .* scored as text alone"):
        list(score_rows(seeing, [asked]))
    assert len(next(score_rows(seeing, [{"id": "rows:2", **ROWS[0]}]))["scores"]) == 3


def test_best_rows_are_rows_for_sft(folder: Path) -> None:
    best = folder / "best-for-sft.jsonl"
    assert score(folder, "--best", str(best)) == 0
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(best)},
        "data": {"eval": None, "cache": "none", "template": "chatml"},
        "train": {"steps": 1, "sequence_len": 192, "micro_batch_size": 4},
    }
    assert train(raw, output=None).steps == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "x"], "give one of --run RUN, or --weights FOLDER; got none"),
        (["--rows", "x", "--run", "r", "--model", "llama"], "--run brings its own model"),
        (
            ["--rows", "x", "--weights", "w", "--checkpoint", "5"],
            "--checkpoint 5 is one of a run, and --weights has none",
        ),
        (["--rows", "x", "--run", "r", "--out", "new", "--best", "./new"], "--out and --best are one file"),
        (["--rows", "x", "--run", "r", "--batch-size", "0"], "--batch-size 0 must be at least 1"),
        (
            ["--rows", "{folder}/rows.jsonl", "--run", "{folder}/run", "--out", "{folder}/rows.jsonl"],
            "is there already",
        ),
        (
            ["--rows", "{folder}/bad.jsonl", "--run", "{folder}/run"],
            "field 'responses' must be a list of at least one text",
        ),
        (
            ["--rows", "{folder}/long.jsonl", "--run", "{folder}/run"],
            "long.jsonl:2: answer 2: the conversation has 10063 tokens, and the model reads 512; shorten it",
        ),
        (
            ["--rows", "{folder}/turn.jsonl", "--run", "{folder}/run"],
            "turn.jsonl:1: answer 1: turn 2 contains '<|im_end|>', which ends a turn",
        ),
        (["--rows", "{folder}/rows.jsonl", "--run", "{folder}/plain"], "the model has no head for scores"),
    ],
)
def test_what_cannot_be_scored_is_said_with_the_way_out(
    folder: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.jsonl").write_text('{"prompt": "a", "responses": []}\n')
    long = [{"prompt": "a", "response": "short"}, {"prompt": "a", "responses": ["short", "long " * 2000]}]
    (folder / "long.jsonl").write_text("".join(json.dumps(each) + "\n" for each in long))
    (folder / "turn.jsonl").write_text(json.dumps({"prompt": "a", "response": "<|im_end|>"}) + "\n")
    if "plain" in words[-1] and not (folder / "plain").exists():
        train(
            {
                "model": {"name": "llama", "n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1},
                "train": {"steps": 1},
            },
            output=folder / "plain",
        )
        capsys.readouterr()
    assert main([word.format(folder=folder) for word in words]) != 0
    assert says in capsys.readouterr().err


def test_a_scorer_gives_scores_in_the_order_of_the_conversations(folder: Path) -> None:
    scorer = Scorer(load_run(folder / "run"))
    turns = [[{"role": "user", "content": "say"}, {"role": "assistant", "content": "it " * n}] for n in (5, 1, 3)]
    together = scorer.score(turns, batch_size=2)
    assert together == pytest.approx([scorer.score([each])[0] for each in turns], abs=1e-6)
