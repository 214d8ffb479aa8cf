"""Starts the processes of a run on this machine and watches over them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from mt_core.cli.guard import ERRORS_VARIABLE
from mt_core.errors import INTERRUPTED, UsageError, show_value
from mt_core.files.scratch import scratch_folder
from mt_core.tracking.logs import notice
from mt_train.assemble.stopping import signals_taken
from mt_train.cli.request import ORIGINS_VARIABLE
from mt_train.cli.root_cause import explain_exit
from mt_train.config.digits import parse_whole_number
from mt_train.config.files import write_yaml
from mt_train.config.ranks import MOST_PROCESSES

GRACE_SECONDS = 10.0
"""How long the others may take to end by themselves once one process has ended with a code other than 0."""
POLL_SECONDS = 0.1
_LEAST_CROWD, _CROWD = 32, 4
"""Processes that any machine may start, and for each of its processors."""
_LAUNCHER = "MT_LAUNCHER"
_ORIGINS_FILE = "origins.json"
_PR_SET_PDEATHSIG = 1


def process_count(text: str) -> int:
    """``--nproc-per-node``: a number, or ``auto`` for one per GPU (one on a machine without)."""
    if text == "auto":
        import torch

        return max(1, torch.cuda.device_count())
    return positive_number("--nproc-per-node", text, ", or auto")


def devices_left(asked: int, present: int) -> int:
    """Return how many of the devices that a run of so many processes had are there now; ``present`` were there at its start, 0 on CPUs."""
    import torch

    return asked - max(0, min(asked, present) - torch.cuda.device_count())


def device_count() -> int:
    """Return the GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


def positive_number(option: str, text: str, other: str = "") -> int:
    """The number that an option has. Raises ``UsageError`` with what it takes."""
    count = parse_whole_number(text)
    if not count or count > MOST_PROCESSES:
        raise UsageError(f"{option} takes a number from 1 to {MOST_PROCESSES:,}{other}, got {show_value(text)}")
    return count


def launch(
    words: Sequence[str],
    raw: Mapping[str, Any],
    count: int,
    hear: Callable[[str], object] = lambda text: None,
    on_signal: Callable[[int], object] = lambda number: None,
    *,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run ``mt-train`` with the config ``raw`` in ``count`` processes; the exit code of the one that ended the run, or 0. ``hear``
    gets each reason that is told, and ``on_signal`` the first signal. ``origins`` tells which key of ``raw`` came from which source.

    The first signal is passed on, and every process saves and ends; the second ends them at once. Raises ``UsageError`` for more
    processes than this machine has room for.
    """
    _refuse_crowd(count)
    with scratch_folder() as folder:
        (folder / "config.yaml").write_text(write_yaml(dict(raw)), encoding="utf-8")
        (folder / _ORIGINS_FILE).write_text(json.dumps(dict(origins)), encoding="utf-8")
        argv = ["--config", str(folder / "config.yaml"), *words]
        processes: list[subprocess.Popen[bytes]] = []
        signals = _Signals(processes, on_signal)
        try:
            with signals_taken(signals.hear):
                for rank in range(count):  # one by one, since signals go to those that are there
                    processes.append(_start(argv, rank, count, folder))
                    signals.pass_on(processes[-1:])
                code, said = explain_exit(_watch(processes), [process.pid for process in processes], folder)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:  # whoever still runs did not end when the others did
            _end(processes)
        for text in said:
            notice(f"error: {text}")
            hear(text)
        return code


def _refuse_crowd(count: int) -> None:
    """Each process imports torch (0.5 GB): thousands of them take a machine down before any can say a word."""
    most = max(_LEAST_CROWD, _CROWD * (os.cpu_count() or 1))
    if count > most:
        raise UsageError(
            f"--nproc-per-node {count} would start {count} processes on a machine with {os.cpu_count()} processors; give at most"
            f" {most}, or look at the layout with --dry-run, which starts none"
        )


class _Signals:
    """Signals to the launcher: the first goes on to each process, once, also to those that start after it; the second interrupts."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], on_signal: Callable[[int], object]) -> None:
        self._processes, self._on_signal = processes, on_signal
        self._heard: int | None = None
        self._told: set[int] = set()

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard is not None:
            raise KeyboardInterrupt
        self._heard = number
        self._on_signal(number)
        self.pass_on(self._processes)

    def pass_on(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Send the signal that was heard, if any, to those of ``processes`` that have not got it."""
        for process in processes:
            if self._heard is not None and process.pid not in self._told:
                self._told.add(process.pid)
                process.send_signal(self._heard)


def _start(argv: Sequence[str], rank: int, count: int, folder: Path) -> subprocess.Popen[bytes]:
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MT_STORE": str(folder / "store"),
        _LAUNCHER: str(os.getpid()),
        ERRORS_VARIABLE: str(folder),
        ORIGINS_VARIABLE: str(folder / _ORIGINS_FILE),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0"),
    }
    command = [sys.executable, "-m", "mt_train.cli.train", *argv]
    # A group of their own: a terminal sends Ctrl-C to its whole group, and they would get it twice.
    if rank == 0:
        return subprocess.Popen(command, env=environment, process_group=0)
    with (folder / f"rank-{rank}.err").open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, process_group=0)


def end_with_launcher() -> None:
    """Have this process get SIGTERM when its launcher is killed: it then saves and ends. Linux only (prctl(2))."""
    launcher = parse_whole_number(os.environ.get(_LAUNCHER, ""))
    if not launcher or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:  # it went before we could ask
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes once all have ended, or some time after the first that failed; ``None`` for those that still run then."""
    deadline = None
    while True:
        codes = [process.poll() for process in processes]
        if deadline is None and any(codes):
            deadline = time.monotonic() + GRACE_SECONDS
        if None not in codes or (deadline is not None and time.monotonic() >= deadline):
            return codes
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()  # a stopped process too, which no other signal reaches
        process.wait()
