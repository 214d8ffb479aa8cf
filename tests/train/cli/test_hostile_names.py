"""Names that a terminal would obey, or that are no UTF-8, end in one message on every command, and nothing of them comes through raw."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mt_core.cli import plugins
from mt_tools.cli import checkpoint, convert, data, eval, export, generate, report
from mt_train.cli import train

CANARY = "x\x1b]0;owned\x07\x1b[2J\r\x9b1m\u202ey"
"""Renames the window, clears the screen, goes back to the start of the line, colours, and turns letters round."""
NOT_UTF8 = os.fsdecode(b"caf\xe9")

Main = Callable[[Sequence[str]], int]
COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "mt-train --config": (train.main, ["--config", "{}"]),
    "mt-train --resume": (train.main, ["--resume", "{}"]),
    "mt-train --model": (train.main, ["--model", "{}"]),
    "mt-train --KEY": (train.main, ["--model", "llama", "--train.{}", "1"]),
    "mt-train VALUE": (train.main, ["--model", "llama", "--train.steps", "{}"]),
    "mt-data inspect": (data.main, ["inspect", "--config", "{}"]),
    "mt-data COMMAND": (data.main, ["{}"]),
    "mt-eval": (eval.main, ["--run", "{}"]),
    "mt-generate --run": (generate.main, ["--prompt", "a", "--run", "{}"]),
    "mt-generate --choices": (generate.main, ["--prompt", "a", "--run", "x", "--choices", "{},{}"]),
    "mt-checkpoint": (checkpoint.main, ["list", "{}"]),
    "mt-export": (export.main, ["--run", "{}", "--output", "out"]),
    "mt-convert": (convert.main, ["{}", "out"]),
    "mt-report": (report.main, ["{}"]),
    "mt-plugins info": (plugins.main, ["info", "{}"]),
    "mt-plugins freeze": (plugins.main, ["freeze", "{}"]),
}


def end(main: Main, words: Sequence[str]) -> int:
    try:
        return main(words)
    except SystemExit as error:  # argparse
        return int(error.code or 0)


def check(said: str) -> None:
    assert not [each for each in said if each not in "\n\t" and not each.isprintable()], said
    assert "Traceback" not in said
    assert "unexpected" not in said


@pytest.mark.parametrize("name", [CANARY, NOT_UTF8], ids=["sequences", "not UTF-8"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_is_shown_and_not_obeyed(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main, words = COMMANDS[command]
    assert end(main, [word.replace("{}", name) for word in words]) in (1, 2)
    said = capfd.readouterr()
    check(said.out + said.err)
    assert "\\x1b" in said.err or "\\udce9" in said.err, said.err


def test_a_folder_that_is_no_utf8_and_a_config_with_sequences_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / NOT_UTF8 / CANARY
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    (folder / "run.json").write_text('{"train": {"a\\u001b[2Jb": 1, "steps": "\\u202e"}, "model": "llama"}')
    assert train.main(["--config", str(folder / "run.json")]) == 2
    said = capfd.readouterr()
    check(said.out + said.err)
    assert "a\\x1b[2Jb" in said.err


def test_rows_of_sequences_are_shown_in_examples_and_faults(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{CANARY}.jsonl"
    rows = ['{"text": "seen \\u001b[2J\\u009b\\u202e\\r end"}'] * 3 + ['{"text": 1, "\\u001b[3J": 2}']
    path.write_text("\n".join(rows))
    words = ["inspect", "--dataset", "jsonl", "--dataset.path", str(path), "--data.eval", "none"]
    assert data.main([*words, "--data.on-bad-row", "skip"]) == 0
    said = capfd.readouterr()
    check(said.out + said.err)
    assert "seen ␛[2J<U+009B><U+202E>␍ end" in said.out, "the inspection has signs of its own for them"
    assert data.main(words) == 1
    check("".join(capfd.readouterr()))
