"""The end of a run names a command that asks the model as its rows did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mt_train import train

SHAPE = {"n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1}
TURNS = {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]}
REFUSES_OTHERS = (
    "{% if messages|length == 1 and messages[0].content != 'ask' %}{{ raise_exception('no question of ours') }}{% endif %}"
    "{% for each in messages %}<|im_start|>{{ each.role }}\n{{ each.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that cannot begin the conversations of ``mt-generate --chat``."""
PAIR = {"prompt": "ask: ", "response": "answer"}


@pytest.mark.parametrize(
    ("row", "template", "option"),
    [
        (TURNS, "chatml", "--chat"),
        (TURNS, "plain", '--prompt "'),
        (PAIR, "chatml", "--chat"),
        (TURNS, REFUSES_OTHERS, '--prompt "The "'),
        (PAIR, None, '--prompt "ask: "'),
        ({**PAIR, "prompt": "ask " * 30}, None, '--prompt "The "'),
    ],
)
def test_the_next_command_converses_where_the_rows_are_turns_of_a_template(
    row: dict[str, Any], template: str | None, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(20)))
    raw = {
        "model": {"name": "llama", **SHAPE},
        "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")},
        "data": {"workers": 1} if template is None else {"workers": 1, "template": template},
        "train": {"steps": 1, "micro_batch_size": 1, "sequence_len": 128},
        "objective": {"name": "sft"},
        "eval": {"samples": 0},
    }
    train(raw, output=tmp_path / "run")
    assert f"mt-generate --run {tmp_path / 'run'} {option}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("length", "shorter", "option"),
    [({"epochs": 2}, {"steps": 3}, "--train.steps 8"), ({"steps": 4}, {"epochs": 1}, "--train.epochs 4")],
)
def test_a_resume_in_another_unit_that_asks_for_fewer_steps_than_there_are_says_so_and_names_a_longer_run(
    length: dict[str, int], shorter: dict[str, int], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(PAIR) + "\n" for _ in range(4)))
    raw = {
        "model": {"name": "llama", **SHAPE},
        "dataset": {"name": "jsonl", "path": str(tmp_path / "rows.jsonl")},
        "data": {"workers": 1, "eval": None},
        "train": {**length, "micro_batch_size": 2, "sequence_len": 128},
        "objective": "sft",
    }
    assert train(raw, output=tmp_path / "run").steps == 4
    capsys.readouterr()
    assert train({"train": shorter}, resume=tmp_path / "run").steps == 4
    shown = capsys.readouterr()
    assert f"mt-train --resume {tmp_path / 'run'} {option}\n" in shown.out
    assert f"had made more than {shorter.get('steps', 2)} steps before, so none was trained now" in shown.err
