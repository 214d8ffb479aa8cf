"""Every command completes itself, in shells that are here, and its help fits a screen or has groups and an example."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from tests.completions import offers

from mt_core.cli.guard import SHELLS

COMMANDS = sorted(point.name for point in entry_points(group="console_scripts") if point.name.startswith("mt-"))
SCREEN = 30
CASES = {
    "mt-report": {
        "mt-report runs/": ["first", "second"],
        "mt-report runs/first runs/s": ["second"],
        "mt-report --ov": ["--overwrite"],
    },
    "mt-plugins": {
        "mt-plugins fr": ["freeze"],
        "mt-plugins freeze runs/f": ["first"],
        "mt-plugins list --comp": ["--components"],
    },
    "mt-generate": {"mt-generate --run runs/s": ["second"], "mt-generate --num": ["--num-beams"]},
    "mt-eval": {"mt-eval --run runs/s": ["second"], "mt-eval --evaluations gsm8k --objective sf": ["sft"]},
    "mt-data": {"mt-data ins": ["inspect"], "mt-data inspect --dataset jso": ["jsonl"]},
}


def run(name: str, *words: str) -> int:
    """Run a command in this process; its exit code."""
    point = next(point for point in entry_points(group="console_scripts") if point.name == name)
    command: Callable[[Any], int] = point.load()
    try:
        return command(list(words))
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_shell_completes_a_command_and_the_folders_of_runs(
    name: str, shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("first", "second"):
        (tmp_path / "runs" / folder).mkdir(parents=True)
    assert run(name, "--completion", shell) == 0
    script = tmp_path / f"{name}.{shell}"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    for line, words in CASES[name].items():
        found = offers(shell, script, line, tmp_path)
        assert [word.rstrip("/").rpartition("/")[2] for word in found] == words, line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_a_script_and_refuses_other_shells(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--completion", "fish") == 0
    assert f"complete -c {name}" in capsys.readouterr().out
    assert run(name, "--completion", "tcsh") == 2
    said = capsys.readouterr().err
    assert "tcsh" in said
    assert "zsh" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_a_screen_or_has_groups_and_always_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"  {name} ") for line in lines)
    assert len(lines) <= SCREEN + 5 or sum(line.endswith(":") and not line.startswith(" ") for line in lines) >= 3
