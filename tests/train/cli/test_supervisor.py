"""``mt-train --restart N``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mt_core.errors import STOPPED, StoppedError, UsageError, WorkerError
from mt_train.cli import launch
from mt_train.cli.supervisor import Attempt, Supervisor, restart_count
from mt_train.cli.train import main
from mt_train.tracking.metrics import MetricsFile


class Machine:
    """Attempts that end with these codes, each after a save or not, on so many devices."""

    def __init__(
        self, output: Path, codes: Sequence[int], *, saves: Sequence[bool] = (), devices: Sequence[int] = (4,)
    ) -> None:
        self.output, self.codes, self.saves, self.devices = output, list(codes), list(saves), list(devices)
        self.attempts: list[Attempt] = []
        self.waits: list[float] = []

    def start(self, attempt: Attempt) -> tuple[int, list[str]]:
        self.attempts.append(attempt)
        (self.output / "logs").mkdir(parents=True, exist_ok=True)
        if self.saves and self.saves.pop(0):
            (self.output / "checkpoints").mkdir(exist_ok=True)
            (self.output / "checkpoints/latest").write_text(f"step-{len(self.attempts):08d}")
        return self.codes.pop(0), ["rank 1 was killed by SIGKILL"]

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def available(self) -> int:
        return self.devices.pop(0) if len(self.devices) > 1 else self.devices[0]

    def run(
        self,
        restarts: int,
        works: Callable[[int], bool] = lambda ranks: 8 % ranks == 0,
        asked: Callable[[], bool] = lambda: False,
    ) -> int:
        return Supervisor(
            restarts=restarts,
            output=self.output,
            start=self.start,
            available=self.available,
            works=works,
            asked=asked,
            sleep=self.sleep,
        ).run()


def test_a_run_that_fails_is_started_again_from_its_checkpoint_until_it_ends_well(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "run", [1, 1, 0], saves=[False, True])
    assert machine.run(5) == 0
    assert machine.attempts == [Attempt(4, saved=False), Attempt(4, saved=False), Attempt(4, saved=True)]
    log = (tmp_path / "run/logs/supervisor.log").read_text().splitlines()
    assert "attempt 1: 4 processes ended with code 1" in log[0]
    assert "rank 1 was killed by SIGKILL; starts again from the beginning in 1 s (1 of 5)" in log[0]
    assert "starts again from step-00000002" in log[1]
    assert "attempt 3: 4 processes ended with code 0" in log[2]


def test_a_run_is_started_again_so_many_times_and_no_more(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "run", [1] * 9)
    assert machine.run(2) == 1
    assert len(machine.attempts) == 3


@pytest.mark.parametrize("code", [0, 2, 65, 75, 130])
def test_no_other_end_is_answered_with_a_start(code: int, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "run", [code])
    assert machine.run(3) == code
    assert len(machine.attempts) == 1


def test_a_run_that_was_asked_to_end_and_failed_at_it_is_not_started_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "run", [1, 1, 0])
    assert machine.run(5, asked=lambda: len(machine.attempts) == 2) == 1
    assert len(machine.attempts) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_it_waits_ends_it_as_one_during_the_run_does(number: signal.Signals, tmp_path: Path) -> None:
    class Signalled(Machine):
        def sleep(self, seconds: float) -> None:
            os.kill(os.getpid(), number)
            time.sleep(30)

    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match=f"stopped by {number.name} .*; go on with: mt-train --resume") as stopped:
        Signalled(tmp_path / "run", [1, 0], saves=[True]).run(5)
    assert stopped.value.exit_code == STOPPED
    assert signal.getsignal(number) == before
    with pytest.raises(StoppedError, match="start the same command again"):
        Signalled(tmp_path / "other", [1, 0]).run(5)


def test_waits_grow_while_no_checkpoint_comes_in_between(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "run", [1, 1, 1, 1, 0], saves=[False, False, True, False, False])
    machine.run(9)
    assert machine.waits == [1, 2, 1, 2]


def test_fewer_devices_train_on_where_they_divide_the_rows_of_a_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "run", [1, 1, 0], saves=[True, True], devices=[4, 3, 1])
    assert machine.run(3) == 0
    assert [attempt.ranks for attempt in machine.attempts] == [4, 2, 1]
    said = capsys.readouterr().err
    assert "goes on with 2 processes instead of 4, the nearest of the 3 left that divides the rows of a step" in said
    assert "goes on with 1 process instead of 2" in said


def test_a_machine_without_devices_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"no device is left on .*; repair it, or give the same command with --resume"
    ):
        Machine(tmp_path / "run", [1], devices=[4, 0]).run(3)


def test_a_number_of_devices_with_which_no_layout_works_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no number of processes up to the 3 that are left divides the rows"):
        Machine(tmp_path / "run", [1], devices=[4, 3]).run(3, works=lambda ranks: ranks == 4)


@pytest.mark.parametrize("text", ["0", "-1", "many", "10001"])
def test_a_number_of_restarts_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--restart takes a number from 1 to 10,000"):
        restart_count(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dry-run"], "--restart goes with a run"),
        (["--output", "none"], "--output none writes none; give a folder"),
    ],
)
def test_what_cannot_be_started_again_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    assert main(["--model", "llama", "--restart", "2", *words]) == 2
    assert said in capsys.readouterr().err


def test_another_run_in_the_folder_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.yaml").write_text("model: llama\n")
    assert main(["--model", "llama", "--restart", "2", "--output", str(tmp_path / "run")]) == 1
    assert "--overwrite" in capsys.readouterr().err


WORDS = [
    "--model",
    "llama",
    "--model.n-layers",
    "1",
    "--model.dim",
    "32",
    "--model.n-heads",
    "2",
    "--model.n-kv-heads",
    "1",
]
WORDS += [
    "--model.dropout",
    "0.1",
    "--train.steps",
    "12",
    "--train.micro-batch-size",
    "4",
    "--train.global-batch-size",
    "8",
]
WORDS += ["--train.sequence-len", "32", "--checkpoint.every-steps", "3", "--eval.every-steps", "none"]
WORDS += ["--eval.samples", "0", "--data.read-rows", "32"]
PLAIN = [word.replace("0.1", "0") for word in WORDS]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in MetricsFile(run / "metrics.jsonl").read()]


def children(pid: int) -> list[int]:
    """Processes that this one has started, oldest first."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append((int(fields[19]), int(place.parent.name)))
    return [number for _, number in sorted(found)]


def kill_second_rank(process: subprocess.Popen[bytes], run: Path, steps: Sequence[int]) -> int:
    """Kill rank 1 after each of these numbers of steps, and return the command's exit code."""
    for step in steps:
        while process.poll() is None:
            there = (run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_bytes().splitlines()) >= step
            if there and len(ranks := children(process.pid)) == 2:
                os.kill(ranks[1], signal.SIGKILL)
                break
            time.sleep(0.01)
        while process.poll() is None and len(children(process.pid)) == 2:
            time.sleep(0.01)
    return process.wait(timeout=500)


@pytest.mark.soak
@pytest.mark.real_start
def test_a_run_of_which_a_rank_is_killed_twice_ends_as_if_nothing_had_happened(
    tmp_path: Path, needs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("mt-plugin-llama")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "mt_train.cli.train", *WORDS, "--nproc-per-node", "2", "--output"]
    subprocess.run([*command, str(tmp_path / "calm")], check=True, capture_output=True, timeout=500)
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen([*command, str(tmp_path / "run"), "--restart", "5"], stdout=said, stderr=said)
        assert kill_second_rank(run, tmp_path / "run", [4, 10]) == 0, (tmp_path / "said").read_text()
    assert losses(tmp_path / "run") == losses(tmp_path / "calm")
    shas = [
        {name: entry["sha256"] for name, entry in json.loads(path.read_text())["files"].items()}
        for path in (tmp_path / each / "checkpoints/step-00000012/manifest.json" for each in ("run", "calm"))
    ]
    assert shas[0] == shas[1]
    log = (tmp_path / "run/logs/supervisor.log").read_text()
    assert log.count("rank 1 was killed by SIGKILL") == 2
    assert log.count("starts again from step-") == 2


@pytest.mark.long
def test_a_run_goes_on_with_fewer_ranks_and_the_same_rows(
    tmp_path: Path, needs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("mt-plugin-llama")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    left = iter([2, 1])
    monkeypatch.setattr(launch, "devices_left", lambda asked, present: next(left))
    started = launch.launch

    def launch_and_kill(
        words: Sequence[str], raw: dict[str, object], count: int, *told: Callable[..., object], origins: dict[str, str]
    ) -> int:
        if count == 2:
            script = "import os, sys, time\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[3])\n"
            script += (
                "from test_supervisor import kill_first_child\nkill_first_child(int(sys.argv[1]), Path(sys.argv[2]))"
            )
            subprocess.Popen(
                [sys.executable, "-c", script, str(os.getpid()), str(tmp_path / "run"), str(Path(__file__).parent)]
            )
        return started(words, raw, count, *told, origins=origins)

    monkeypatch.setattr(launch, "launch", launch_and_kill)
    assert main([*PLAIN, "--nproc-per-node", "2", "--restart", "2", "--output", str(tmp_path / "run")]) == 0
    assert "goes on with 1 process instead of 2" in capsys.readouterr().err
    assert main([*PLAIN, "--output", str(tmp_path / "calm")]) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "calm"), rel=1e-6)


def kill_first_child(parent: int, run: Path) -> None:
    """Kill the last rank that a launcher has started, after four steps."""
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_bytes().splitlines()) < 4:
        time.sleep(0.01)
    mine = [pid for pid in children(parent) if pid != os.getpid()]
    os.kill(mine[-1], signal.SIGKILL)
