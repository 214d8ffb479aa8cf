"""Starts the processes of a run on this machine and watches over them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mt_core.assemble.stopping import SIGNALS
from mt_core.cli.guard import ERRORS_VARIABLE
from mt_core.config.files import write_yaml
from mt_core.errors import UsageError
from mt_core.tracking.logs import notice

GRACE_SECONDS = 10.0
"""How long the others may take to end by themselves once one process has failed."""
POLL_SECONDS = 0.1


def process_count(text: str) -> int:
    """``--nproc-per-node``: a number, or ``auto`` for one per GPU (one on a machine without)."""
    if text == "auto":
        import torch

        return max(1, torch.cuda.device_count())
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--nproc-per-node takes a positive number or auto, got {text!r}")
    return int(text)


def launch(words: Sequence[str], raw: Mapping[str, Any], count: int) -> int:
    """Run ``mt-train`` with the config ``raw`` in ``count`` processes; the exit code of the first that failed, or 0.

    The first signal is passed on, and every process saves and ends; the second ends them at once.
    """
    with tempfile.TemporaryDirectory(prefix="mt-train-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(write_yaml(dict(raw)), encoding="utf-8")
        argv = ["--config", str(folder / "config.yaml"), *words]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            with _passed_on(processes):
                processes += [_start(argv, rank, count, folder) for rank in range(count)]
                code, culprit = _watch(processes)
        except KeyboardInterrupt:
            _end(processes, signal.SIGKILL)
            return 130
        finally:
            _end(processes, signal.SIGTERM)
        if code and culprit:
            _explain(culprit, code, folder)
        return code if code >= 0 else 1


@contextmanager
def _passed_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass the first signal on to the processes; make the second a ``KeyboardInterrupt``."""
    seen: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(argv: Sequence[str], rank: int, count: int, folder: Path) -> subprocess.Popen[bytes]:
    threads = str(max(1, (os.cpu_count() or 1) // count))
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MT_STORE": str(folder / "store"),
        ERRORS_VARIABLE: str(folder),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0"),
    }
    command = [sys.executable, "-m", "mt_core.cli.train", *argv]
    # A group of their own: a terminal sends Ctrl-C to its whole group, and they would get it twice.
    if rank == 0:
        return subprocess.Popen(command, env=environment, process_group=0)
    with (folder / f"rank-{rank}.err").open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, process_group=0)


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """(exit code, rank) of the first process that failed, once all have ended."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            time.sleep(0.5)  # rank 0 reports what all ranks failed at; let it speak first
            deadline = time.monotonic() + GRACE_SECONDS
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            return int(codes[failed[0]] or 0), failed[0]
        if all(code == 0 for code in codes):
            return 0, 0
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen[bytes]], how: signal.Signals) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(how)
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _explain(culprit: int, code: int, folder: Path) -> None:
    """Say which process ended the run, in its own words, unless rank 0 has said the same."""
    words = _last_words(culprit, folder)
    if words and words == _last_words(0, folder):
        return
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    notice(f"rank {culprit} {how}" + (f": {words}" if words else ""))


def _last_words(rank: int, folder: Path) -> str:
    said, errors = folder / f"rank-{rank}.said", folder / f"rank-{rank}.err"
    if said.exists():
        return said.read_text(encoding="utf-8")
    lines = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
    return lines[-1] if lines else ""
