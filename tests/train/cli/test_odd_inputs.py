"""Damaged configs and odd command lines of every command: one message, exit code 0, 1 or 2, and an end within seconds.

The sample is fast; ``pytest -m soak`` runs ten thousand, and ``python tests/train/cli/odd_inputs.py lines:mt-eval 500`` as many as you
like.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import odd_inputs
import pytest
from odd_inputs import End


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to be in, away from the network and from the user's cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(odd_inputs, "SECONDS", 60)  # of a machine that other tests keep busy
    with odd_inputs.plugins_loaded_once():
        yield tmp_path


def check(ends: Iterator[tuple[str, End]]) -> None:
    faults = [f"{end.fault}: {what}\n{end.said[-800:]}" for what, end in ends if end.fault]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:5])


def test_a_damaged_config_ends_in_a_message(place: Path) -> None:
    check(odd_inputs.configs(150, 1, place, dry_runs=False))


def test_an_odd_command_line_of_any_command_ends_in_a_message(place: Path) -> None:
    check(odd_inputs.lines(100, 1, place))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_thousand_damaged_configs_do(place: Path) -> None:
    check(odd_inputs.configs(5000, 2, place))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_thousand_odd_command_lines_do(place: Path) -> None:
    odd_inputs.prepare(place)
    check(odd_inputs.lines(5000, 2, place))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_so_do_a_hundred_processes(place: Path) -> None:
    chance, all_of = random.Random(3), odd_inputs.examples()
    for _ in range(100):
        path = odd_inputs.config_file(place, chance, all_of)
        command = [sys.executable, "-m", "mt_train.cli.train", "--config", str(path), "--print-config"]
        result = subprocess.run(command, capture_output=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
        end = End(result.returncode, result.stderr.decode("utf-8", "replace"))
        assert not end.fault, f"{end.fault}: {path.read_bytes()[:3000]!r}\n{end.said}"
