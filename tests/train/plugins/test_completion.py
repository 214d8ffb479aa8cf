"""Completion in shells, asked of the shells themselves."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.completions import offers

from mt_core.plugins.host import PluginHost
from mt_train.cli.entry import main
from mt_train.cli.request import REPEATED, SWITCHES, VALUES
from mt_train.plugins.completion import SHELLS, write_completion

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    host, folder = PluginHost.discover(), tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        text = write_completion("mt-train", shell, host, switches=SWITCHES, values=(*VALUES, *REPEATED))
        (folder / shell).write_text(text, encoding="utf-8")
    return {shell: folder / shell for shell in SHELLS}


def children_seconds() -> float:
    """Processor seconds of the processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


CASES = {
    "mt-train --model lla": ["llama"],
    "mt-train --model llama --adapter dor": ["dora"],
    "mt-train --recipe dna-c": ["dna-caption"],
    "mt-train --train.st": ["--train.steps"],
    "mt-train --completion z": ["zsh"],
    "mt-train --help ev": ["eval", "evaluations"],
    "mt-train --config ro": ["rows.yaml"],
    "mt-train --output runs/fi": ["runs/first"],
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_options_names_and_paths(shell: str, scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").touch()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for line, words in CASES.items():
        found = [word.rstrip("/") for word in offers(shell, scripts[shell], line, tmp_path)]
        assert found in (words, [word.rpartition("/")[2] for word in words]), line


@pytest.mark.parametrize("shell", ["bash", "fish"])  # a pseudo-terminal hides what zsh takes
def test_a_completion_takes_a_tenth_of_a_second_of_a_processor(shell: str, scripts: dict[str, Path]) -> None:
    spent = []
    for _ in range(10):
        before = children_seconds()
        assert "--optimizer.lr" in offers(shell, scripts[shell], "mt-train --opt")
        spent.append(children_seconds() - before)
    assert min(spent) < 0.1  # with the shell's own start, and reading the script


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
