"""Programs that a model wrote, each in a process of its own that can do little (``sandbox_child.py``)."""

from __future__ import annotations

import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Literal

from mt_core import MtError, UsageError

from .sandbox_child import SYSCALLS

Verdict = Literal["passed", "failed", "unreadable", "timeout"]

_CHILD = Path(__file__).with_name("sandbox_child.py")
_ANSWERS: tuple[Verdict, ...] = ("passed", "failed", "unreadable")
_READY = "ready "


@dataclass(frozen=True)
class Limits:
    """Bounds of a program. It is given three times its processor time, and five seconds, by the clock."""

    cpu_seconds: int
    memory_bytes: int

    @property
    def seconds(self) -> float:
        """Return how long it may take by the clock."""
        return 3.0 * self.cpu_seconds + 5.0


def refuse_unsafe_platform() -> None:
    """Raise ``UsageError`` where a process cannot be kept from files and network."""
    if sys.platform != "linux" or platform.machine() not in SYSCALLS:
        raise UsageError(
            f"programs of a model run only where the kernel keeps them from files and network: Linux on {' or '.join(SYSCALLS)};"
            f" this is {sys.platform} on {platform.machine()}. Evaluate there"
        )


def run_program(program: str, limits: Limits) -> Verdict:
    """Run a program, and say whether it came to its end without an error. Raises ``MtError`` where it cannot be kept apart."""
    word = secrets.token_hex(16)
    given = {"program": program, "word": word, "cpu_seconds": limits.cpu_seconds, "memory_bytes": limits.memory_bytes}
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", **kept},
            start_new_session=True,
        )
        said, problem, in_time = _talk(process, dumps(given).encode(), limits.seconds)
    if not said.startswith(_READY):
        raise MtError(
            f"a program of the model could not be kept apart, and was not run: {problem.strip()[-300:] or 'no reason given'}"
        )
    found, _, verdict = said.removeprefix(_READY).partition(" ")
    if found == word and verdict in _ANSWERS:
        return verdict
    return "timeout" if not in_time or process.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else "failed"


def _talk(process: subprocess.Popen[bytes], given: bytes, seconds: float) -> tuple[str, str, bool]:
    """Hand over the program; return what the process said, why it failed at the start, and whether it ended in time.

    Only the first bytes are read: a program that floods the pipe waits there until its time is over.
    """
    assert process.stdin is not None, "a pipe was asked for"
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    in_time = True
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(given)
            process.stdin.close()
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with process.stdout, process.stderr:
        return os.read(process.stdout.fileno(), 200).decode(errors="replace"), _last(process.stderr.fileno()), in_time


def _last(stream: int) -> str:
    return os.read(stream, 65536).decode(errors="replace")
