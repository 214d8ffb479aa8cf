"""Root cause of a run's end: the process that failed first. The others fail with it, each in its own collective, and are no cause."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from os import kill
from pathlib import Path

from mt_core.cli.guard import LOST, SAID
from mt_core.errors import STOPPED

STACK_LINES = 8
"""How much of a hanging process's stack is shown; innermost first."""


def explain_exit(codes: Sequence[int | None], pids: Sequence[int], folder: Path) -> tuple[int, list[str]]:
    """(exit code of the run, what to tell of it), from the exit codes by rank; ``None`` is a process that still runs.

    What rank 0 has said itself is not repeated, and what several said is told once.
    """
    culprits = _root_causes(codes, folder)
    if not culprits:
        return 0, []
    code = codes[culprits[0]]
    if code == STOPPED:
        return code, []
    told, texts = {_read(folder / f"rank-0{SAID}")}, []
    for rank in culprits:
        words = _read(folder / f"rank-{rank}{SAID}")
        if not words or words not in told:
            texts.append(f"rank {rank} {_describe_end(codes[rank], pids[rank], folder / f'rank-{rank}')}")
        told.add(words)
    return (code if code and code > 0 else 1), texts


def _root_causes(codes: Sequence[int | None], folder: Path) -> list[int]:
    """Killed from outside comes first; then a fault of its own; then who still runs when the others have given up (it hangs,
    or is stopped); then who left without a word. An abort is how NCCL gives up.
    """
    ranks = range(len(codes))
    lost = {rank for rank in ranks if (folder / f"rank-{rank}{LOST}").exists() or codes[rank] == -signal.SIGABRT}
    failed = [rank for rank in ranks if codes[rank]]
    if not failed:
        return []
    groups = (
        [rank for rank in failed if rank not in lost and (codes[rank] or 0) < 0],
        [rank for rank in failed if rank not in lost and codes[rank] != STOPPED],
        [rank for rank in failed if codes[rank] == STOPPED],
        [rank for rank in ranks if codes[rank] is None],
        [rank for rank in ranks if codes[rank] == 0],
    )
    return next(filter(None, groups), failed)


def _describe_end(code: int | None, pid: int, stem: Path) -> str:
    if code is None:
        return _describe_silence(pid, stem.with_suffix(".err"))
    words = _read(stem.with_suffix(SAID)) or _read(stem.with_suffix(LOST)) or _last_line(stem.with_suffix(".err"))
    if code > 0:
        return f"ended with code {code}" + (f": {words}" if words else "")
    if code == 0:
        return "left before the run was over, with code 0"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (" (the system does that when memory runs out)" if code == -signal.SIGKILL else "")


def _describe_silence(pid: int, errors: Path) -> str:
    """Stopped, or where it hangs."""
    if _is_stopped(pid):
        return "is stopped (SIGSTOP, or a debugger), and the others have given up waiting for it"
    start = len(_read(errors))
    kill(pid, signal.SIGUSR2)  # assemble/run.py: it prints its stacks
    time.sleep(1.0)
    stack = re.findall(r"^  File .*$", _read(errors)[start:].rpartition("Current thread")[2], re.MULTILINE)
    where = "; it is at, innermost first:\n" + "\n".join(stack[:STACK_LINES]) if stack else ""
    return f"does not answer, and the others have given up waiting for it{where}"


def _is_stopped(pid: int) -> bool:
    """Tell by the state in /proc/PID/stat, after the name in brackets; unknown where there is none."""
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in (["T"], ["t"])


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _last_line(path: Path) -> str:
    return next(reversed(_read(path).strip().splitlines()), "")
