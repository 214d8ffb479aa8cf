"""One process of a run is killed, stopped, hangs or fails: all end soon, and the one that did it is named.

What goes wrong, and where, is done by a callback (faulty_callback.py), so nothing here depends on when a signal arrives.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt_train.checkpoint.store import find, verify

TIMEOUT_SECONDS = 8
CONFIG = """
model: {name: llama, n_layers: 1}
train: {steps: 5, micro_batch_size: 2, sequence_len: 32}
data: {eval: 4}
eval: {every_steps: 2, samples: 0}
checkpoint: {every_steps: 2}
parallel: {timeout_seconds: TIMEOUT}
callbacks: [{name: faulty, deeds: [DEEDS]}]
""".replace("TIMEOUT", str(TIMEOUT_SECONDS))
ONE = [sys.executable, "-m", "mt_train.cli.train"]
OWN = [*ONE, "--nproc-per-node", "COUNT"]
TORCHRUN = [f"{sysconfig.get_path('scripts')}/torchrun", "--nproc-per-node", "COUNT", "-m", "mt_train.cli.train"]


@dataclass(frozen=True)
class Ending:
    """How a command ended; ``seconds`` count from the last line of a step that it printed."""

    code: int
    out: str
    errors: str
    seconds: float


Misbehave = Callable[..., Ending]


@pytest.fixture
def misbehave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Misbehave:
    """Train in ``tmp_path / "run"`` with misdeeds; fails when a process of the run is left over."""
    installed = tmp_path / "faulty-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[mt_core.plugins]\nfaulty = faulty_callback\n")
    shutil.copy(Path(__file__).with_name("faulty_callback.py"), tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(deeds: str, *, count: int = 2, launcher: list[str] = OWN) -> Ending:
        (tmp_path / "config.yaml").write_text(CONFIG.replace("DEEDS", deeds))
        words = [word.replace("COUNT", str(count)) for word in launcher] + [
            "--config",
            "config.yaml",
            "--output",
            "run",
        ]
        with (tmp_path / "errors.txt").open("wb") as errors:
            process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        lines, last = [], time.monotonic()
        for line in process.stdout:
            lines.append(line)
            last = time.monotonic() if line.startswith("step ") else last
        code = process.wait(timeout=500)
        deadline = time.monotonic() + 20
        while _left(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _left(tmp_path) == []
        return Ending(code, "".join(lines), (tmp_path / "errors.txt").read_text(), time.monotonic() - last)

    return run


def _left(folder: Path) -> list[str]:
    """Processes of the run that still live, by their working folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if place.joinpath("cwd").resolve() == folder and int(place.name) != os.getpid():
                found.append(place.joinpath("cmdline").read_text())
        except OSError:
            continue  # it has ended meanwhile
    return found


def test_a_process_that_is_killed_while_another_saves_is_named_with_its_signal_and_the_run_goes_on_later(
    misbehave: Misbehave, tmp_path: Path
) -> None:
    ended = misbehave("1=kill@second-save")
    assert ended.code == 1
    assert ended.seconds < 30
    assert ended.errors.strip().endswith(
        "error: rank 1 was killed by SIGKILL (the system does that when memory runs out)"
    )
    assert ended.errors.count("error") == 1, "rank 0 lost a connection, and that is no news"
    assert "Traceback" not in ended.errors
    assert "lost the connection to another process" in (tmp_path / "run/logs/rank-0.log").read_text()
    assert verify(find(tmp_path / "run"))["step"] == 2
    subprocess.run([*ONE, "--resume", "run"], cwd=tmp_path, check=True, capture_output=True, timeout=500)
    assert verify(find(tmp_path / "run"))["step"] == 5
    assert not list((tmp_path / "run/checkpoints").glob(".tmp-*"))


def test_processes_whose_launcher_is_killed_save_and_end(misbehave: Misbehave, tmp_path: Path) -> None:
    ended = misbehave("1=orphan@on_step_start")
    assert ended.code == -9
    assert "stopped by SIGTERM after step" in ended.errors
    assert verify(find(tmp_path / "run"))["step"] in (3, 4)


def test_processes_that_are_stopped_or_hang_end_soon_after_the_timeout_and_are_told_apart_from_those_that_wait(
    misbehave: Misbehave,
) -> None:
    ended = misbehave("1=hang@on_step_start, 2=stop@on_step_start", count=3)
    assert ended.code == 1
    assert ended.seconds < TIMEOUT_SECONDS + 30
    assert "error: rank 1 does not answer, and the others have given up waiting for it; it is at" in ended.errors
    assert re.search(r'innermost first:\n  File ".*faulty_callback.py", line \d+ in _hang\n', ended.errors)
    assert "error: rank 2 is stopped (SIGSTOP, or a debugger)" in ended.errors
    assert "rank 0" not in ended.errors
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize(
    "launcher", [OWN, pytest.param(TORCHRUN, marks=pytest.mark.soak)], ids=["own-launcher", "torchrun"]
)
def test_a_callback_that_raises_on_one_rank_ends_all_at_once_and_is_named_once(
    launcher: list[str], misbehave: Misbehave, tmp_path: Path
) -> None:
    ended = misbehave("1=raise@on_step_start", launcher=launcher)
    assert ended.code == 1
    assert "step 1/5" in ended.out
    assert ended.seconds < 15
    said = "callback faulty (faulty_callback) failed in on_step_start at step 2: ZeroDivisionError: no divisor on this rank"
    assert ended.errors.count(said) == 1
    assert "rank 1" in next(line for line in ended.errors.splitlines() if said in line)
    if launcher is OWN:
        assert ended.errors.count("error:") == 1
        assert "Traceback" not in ended.errors
    assert "in _raise" in (tmp_path / "run/logs/rank-1.log").read_text()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("deeds", "said"),
    [
        ("0=kill@on_step_start", "error: rank 0 was killed by SIGKILL"),
        ("1=kill@on_evaluate_end", "error: rank 1 was killed by SIGKILL"),
        ("1=leave@on_step_start", "error: rank 1 left before the run was over, with code 0"),
        ("1=collate@on_step_start", "error: rank 1 ended with code 1: row 7 cannot be used"),
        ("1=evaluate@on_step_start", "error: rank 1 ended with code 1: unexpected IndexError: no such token"),
        ("0=hang@save", "error: rank 0 does not answer"),
        ("1=stop@save", "error: rank 1 is stopped"),
    ],
)
def test_whatever_ends_a_run_on_one_rank_is_named(deeds: str, said: str, misbehave: Misbehave) -> None:
    ended = misbehave(deeds)
    assert ended.code == 1
    assert ended.seconds < TIMEOUT_SECONDS + 30
    assert said in ended.errors
    assert ended.errors.count("error:") == 1
