"""Questions with pictures in an evaluation: the answers are those of the same prompts, and paths lie below the run's root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.multimodal.llava import write_pictures

from mt_core.errors import UsageError
from mt_tools import generate as write_texts
from mt_tools.cli.data import main as inspect
from mt_tools.cli.eval import main as evaluate
from mt_tools.cli.generate import main as generate
from mt_train import load_run, train

SHAPE = {"vocab_size": 300, "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "ffn_dim": 48}
PART = [{"type": "image", "path": "pictures/1.png"}, {"type": "text", "text": " what"}]
CLIP = {"image": 8, "patch": 4, "width": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows with a picture each, by a field, in a content part, and none; which asks them, too."""
    folder = tmp_path_factory.mktemp("asked")
    write_pictures(folder / "pictures", 2)
    rows: list[dict[str, Any]] = [
        {"prompt": "<image> what", "response": "a", "image": "pictures/0.png"},
        {"prompt": "<image> what", "response": "a", "image": "pictures/1.png"},
        {"messages": [{"role": "user", "content": PART}, {"role": "assistant", "content": "b"}]},
        {"prompt": "what", "response": "c"},
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = {
        "rows": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "metrics": ["exact-match"],
        "max_new_tokens": 6,
    }
    raw = {
        "model": {"name": "llama", **SHAPE},
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "encoders": {"clip": CLIP},
        "data": {"eval": None, "template": "chatml"},
        "evaluations": {"answers": answers},
        "eval": {"every_steps": 2},
        "optimizer": {"name": "adamw", "lr": 3e-2},
        "train": {"steps": 2, "sequence_len": 96, "global_batch_size": 4, "micro_batch_size": 4},
    }
    train(raw, output=folder / "run")
    return folder


def asked_of(folder: Path) -> list[dict[str, Any]]:
    path = next((folder / "out").rglob("predictions.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_with_pictures_are_asked_as_they_are_trained_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "--run",
        str(folder / "run"),
        "--evaluations",
        "answers",
        "--predictions",
        "--output",
        str(folder / "out"),
    ]
    assert evaluate(command) == 0
    found = asked_of(folder)
    assert [row["references"] for row in found] == [["a"], ["a"], ["b"], ["c"]]
    assert [[turn["content"] for turn in row["asked"]] for row in found] == [["<image> what"]] * 3 + [["what"]]
    places = [row["prompt_tokens"] for row in found]
    assert places[0] == places[1] == places[2] == places[3] + 4 + 1
    assert [row["answer"] for row in found] == generated(folder)
    assert len({row["answer"] for row in found}) > 1
    in_training = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert in_training["eval_answers_exact_match"] == 0.0


def generated(folder: Path) -> list[str]:
    """Texts that mt-generate writes to the same questions, as conversations."""
    asked = [
        {"messages": [{"role": "user", "content": "<image> what"}], "image": "pictures/0.png"},
        {"messages": [{"role": "user", "content": "<image> what"}], "image": "pictures/1.png"},
        {"messages": [{"role": "user", "content": "<image> what"}], "image": "pictures/1.png"},
        {"messages": [{"role": "user", "content": "what"}]},
    ]
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    options = ["--chat-template", "chatml", "--greedy", "--max-new-tokens", "6", "--out", str(folder / "said.jsonl")]
    assert generate(["--run", str(folder / "run"), "--prompts", str(folder / "asked.jsonl"), *options]) == 0
    lines = [json.loads(line) for line in (folder / "said.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if "text" in line]


def test_a_dry_run_counts_places_and_loads_no_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["--run", str(folder / "run"), "--evaluations", "answers", "--dry-run"]) == 0
    assert "4" in capsys.readouterr().out


@pytest.mark.parametrize(("field", "warned"), [("image", 0), ("pictures", 2)])
def test_rows_with_a_place_and_no_picture_are_a_warning(
    folder: Path, field: str, warned: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "<image> what", "response": name, field: str(folder / f"pictures/{number}.png")}
        for number, name in enumerate("ab")
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"prompt": "what", "response": "c"}])))
    words = [
        "--dataset",
        "jsonl",
        "--dataset.path",
        str(tmp_path / "rows.jsonl"),
        "--objective",
        "sft",
        "--data.eval",
        "none",
    ]
    model = ["--model", "llama", "--encoders", "clip", "--data.media-root", str(folder)]
    assert inspect(["inspect", "--json", *words, *model]) == 0
    found = json.loads(capsys.readouterr().out)
    told = [each for each in found["warnings"] if "place for media" in each]
    assert [each.partition(" rows")[0] for each in told] == [f"training: {warned} of 3"] * bool(warned)


def test_a_picture_that_cannot_be_read_names_its_row_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "<image> what", "response": "a", "image": "broken.png"}')
    words = ["--dataset", "jsonl", "--dataset.path", str(rows), "--data.eval", "none"]
    model = ["--model", "llama", "--encoders", "clip"]
    for objective in ("sft", "pretrain"):
        assert inspect(["inspect", *words, *model, "--objective", objective]) != 0
        assert capsys.readouterr().err.count("rows.jsonl:1") == 1
    asked = ["--evaluations.answers.rows.path", str(rows), "--data.media-root", str(tmp_path)]
    assert evaluate(["--run", str(folder / "run"), "--evaluations", "answers", *asked]) != 0
    assert capsys.readouterr().err.count("rows.jsonl:1") == 1


def test_python_takes_a_text_with_its_picture_as_the_command_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, loaded = folder / "pictures/1.png", load_run(folder / "run")
    words = ["--prompt", "<image> what", "--image", str(picture), "--greedy", "--max-new-tokens", "6"]
    capsys.readouterr()
    assert generate(["--run", str(folder / "run"), *words]) == 0
    wanted = capsys.readouterr().out
    for images in (picture, [str(picture)]):
        row = {"prompt": "<image> what", "images": images}
        found = write_texts(loaded, [row, "what"], greedy=True, max_new_tokens=6)
        assert found[0].text + "\n" == wanted
        assert found[1] == write_texts(loaded, "what", greedy=True, max_new_tokens=6)[0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"prompt": "<image>", "sounds": ["x"]},
            r"prompts\[0\] has 'sounds', and the model takes, beside 'prompt', images",
        ),
        ({"prompt": "<image>", "images": []}, "<image> 1 times, and there are 0 files"),
        ({"prompt": "what", "images": ["x.png"]}, "<image> 0 times, and there are 1 files"),
        ({"prompt": "<image>", "images": ["x.png"]}, "x.png"),
        ({"prompt": "<image>", "images": [3]}, r"prompts\[0\]\['images'\] is a path"),
        ({"prompt": 3}, r"prompts\[0\]\['prompt'\] is a text"),
    ],
)
def test_a_row_that_is_no_prompt_gets_one_message(folder: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        write_texts(load_run(folder / "run"), [row], max_new_tokens=2)


def test_a_place_without_a_picture_is_refused_from_python_and_in_a_file_of_prompts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_run(folder / "run")
    assert loaded.media_kinds == {"image"}
    turns = [{"role": "user", "content": "<image> what"}]
    for prompt in ("<image> what", [turns]):
        with pytest.raises(UsageError, match="the prompt has <image>, and nothing is given for it"):
            write_texts(loaded, prompt, max_new_tokens=2)
    write_texts(loaded, "what <images>", max_new_tokens=2)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "what"}\n{"prompt": "<image> what"}\n')
    words = [
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "--out",
        str(tmp_path / "out.jsonl"),
        "--max-new-tokens",
        "2",
    ]
    assert generate(["--run", str(folder / "run"), *words]) != 0
    assert "prompts.jsonl:2: the prompt has <image>" in capsys.readouterr().err
