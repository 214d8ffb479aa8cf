"""Completion in shells, asked of the shells themselves."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from mt_core.plugins.host import PluginHost
from mt_train.cli.completion import SHELLS, write_completion
from mt_train.cli.entry import main
from mt_train.cli.train import REPEATED, SWITCHES, VALUES

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    host, folder = PluginHost.discover(), tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        text = write_completion(shell, host, switches=SWITCHES, values=(*VALUES, *REPEATED))
        (folder / shell).write_text(text, encoding="utf-8")
    return {shell: folder / shell for shell in SHELLS}


def children_seconds() -> float:
    """Processor seconds of the processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words, through the function that the script has registered."""
    code = """
source "$1"; shift
registered=$(complete -p mt-train); function=${registered#*-F }; function=${function%% *}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function" mt-train "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    line = ["bash", "--norc", "-c", code, "bash", str(script), "mt-train", *words]
    return [
        word.strip()
        for word in subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
        if word.strip()
    ]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_options_and_names_in_a_tenth_of_a_second(scripts: dict[str, Path]) -> None:
    assert complete(scripts["bash"], "--model", "lla") == ["llama"]
    assert complete(scripts["bash"], "--model", "llama", "--adapter", "dor") == ["dora"]
    assert complete(scripts["bash"], "--recipe", "dna-c") == ["dna-caption"]
    assert complete(scripts["bash"], "--train.st") == ["--train.steps"]
    assert complete(scripts["bash"], "--completion", "z") == ["zsh"]
    assert complete(scripts["bash"], "--help", "ev") == ["eval", "evaluations"]
    before = children_seconds()
    assert "--optimizer.lr" in complete(scripts["bash"], "--opt")
    assert children_seconds() - before < 0.1  # of a processor, with reading the script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(shell: str, scripts: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    subprocess.run([*CHECKS[shell], str(scripts[shell])], check=True, timeout=60)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_options_and_names(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text(encoding="utf-8")
    for word in ("optimizer.lr", "restart", "llama", "dora", "jsonl"):
        assert word in text


def test_a_shell_that_is_not_known_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "tcsh"]) == 2
    assert "It takes bash, zsh, fish" in capsys.readouterr().err
