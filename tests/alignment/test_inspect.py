"""What is shown of pairs before anything is trained on them, and in the first lines of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.data import main as mt_data
from mt_tools.cli.eval import main as mt_eval
from mt_train.cli.train import main as mt_train

ROWS = [
    {"prompt": "2 + 2 = ", "chosen": "4", "rejected": "5, I think"},
    {"prompt": "Say yes: ", "chosen": "yes", "rejected": "no"},
    {"prompt": "Say yes: ", "chosen": "yes", "rejected": "no"},
    {"prompt": "Say it: ", "chosen": "it", "rejected": "it"},
    {"prompt": "Say it: ", "chosen": "it", "rejected": ""},
]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[dict[str, Any]]], None]:
    monkeypatch.chdir(tmp_path)
    return lambda rows: Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows)) and None


def inspect(*words: str) -> int:
    given = ["--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "dpo", "--data.eval", "none"]
    return mt_data(["inspect", *given, *words])


def train(objective: str, *words: str) -> int:
    given = ["--model", "llama", "--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--train.steps", "1"]
    return mt_train([*given, "--objective", objective, "--train.sequence-len", "64", "--output", "run", *words])


def test_both_sides_are_shown_with_what_is_trained_on(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ROWS)
    assert inspect("--examples", "1") == 0
    shown = capsys.readouterr().out
    assert "chosen: <bos>2 + 2 = «4<eos>»\nrejected: <bos>2 + 2 = «5, I think<eos>»" in shown


def test_lengths_of_prompts_and_of_both_answers_are_shown(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens are bytes here; a prompt begins with a token of its own, and an answer ends with one."""
    write(ROWS)
    assert inspect() == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"prompt, mean and longest (tokens) {(9 + 10 + 10) / 3:.1f}, 10" in lines
    assert f"chosen, mean and longest (tokens) {(2 + 4 + 4) / 3:.1f}, 4" in lines
    assert f"rejected, mean and longest (tokens) {(11 + 3 + 3) / 3:.1f}, 11" in lines
    assert "chosen is longest 66.7%" in lines


def test_what_was_dropped_is_counted_by_reason(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ROWS)
    assert inspect("--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["rows_dropped"] == {"'chosen' and 'rejected' are the same": 1, "'rejected' is empty": 1}
    assert about["places"]["'rejected' is empty"] == ["rows.jsonl:5"]
    assert about["duplicates"] == 1
    assert about["document_names"] == ["chosen", "rejected"]
    counted = sum(len(row["chosen"]) + len(row["rejected"]) + 2 for row in ROWS[:3])
    assert about["tokens_trained"] == counted == sum(about["answers_total"].values())
    example = about["examples"][0]
    assert example["tokens_trained"] == 2 + 11
    assert [part["document"] for part in example["parts"] if part["trained"] and not part["special"]] == [
        "chosen",
        "rejected",
    ]


def test_a_page_has_both_sides(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(ROWS)
    assert inspect("--examples", "1", "--html", "page.html") == 0
    text = re.sub(r"<[^>]+>", "|", Path("page.html").read_text())
    assert re.search(
        r"\|chosen\|+&lt;bos&gt;\|2 \+ 2 = \|4\|&lt;eos&gt;\|+rejected\|+&lt;bos&gt;\|2 \+ 2 = \|5, I", text
    )
    assert "chosen is longest" in text


def test_a_side_that_lost_its_end_is_told_whichever_it_is(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest answers are cut first, which are the chosen ones here."""
    write([{"prompt": "q", "chosen": "y" * 40, "rejected": "n"}] * 4)
    assert inspect("--data.max-len", "30", "--data.truncation", "right", "--json") == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["rows_truncated"], about["rows_without_stop"]) == (4, 4)


def test_the_first_lines_of_a_run_show_prompt_and_both_answers(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write([ROWS[0]] * 8)
    assert train("dpo", "--data.eval", "none") == 0
    assert "example    prompt: 2 + 2 = chosen: «4» rejected: «5, I think»" in capsys.readouterr().out
    about = json.loads(Path("run/about.json").read_text())
    assert about["example"] == "prompt: 2 + 2 = \nchosen: «4»\nrejected: «5, I think»"


def test_a_loss_of_pairs_writes_no_predictions_of_tokens_and_says_so(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write([{**ROWS[1], "prompt": f"Say yes {number}: "} for number in range(20)])
    assert train("simpo") == 0
    assert mt_eval(["--run", "run", "--predictions"]) == 0
    written = capsys.readouterr()
    assert "predictions.jsonl has no line" in written.out + written.err
    assert mt_eval(["--run", "run", "--objective", "sft", "--predictions"]) == 0
    lines = [json.loads(line) for line in Path("run/eval/002/predictions.jsonl").read_text().splitlines()]
    assert {line["expected"] for line in lines} == {"yes"}, "the chosen answers, which fine-tuning would learn"
