"""Small runs of a plugin in one process and in two, all in one launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PATIENCE_SECONDS = 240
"""How long a launch may take, on a machine that does other things as well."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run: its config, its processes (1 or 2), the step whose checkpoint it goes on from once more, the event that raises."""

    raw: Mapping[str, Any]
    processes: int = 1
    again_from: int | None = None
    raises_in: str = ""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run: the figures of each step, those after the resume, and the error of each rank (empty: none)."""

    records: list[dict[str, Any]]
    again: list[dict[str, Any]]
    errors: list[str]

    def figures(self, name: str) -> list[float]:
        """One figure of each step; where it is null, not a number."""
        return [float("nan") if record[name] is None else float(record[name]) for record in self.records]


def launch_cases(cases: Mapping[str, Case], folder: Path, *, plugin: ModuleType) -> dict[str, Result]:
    """Run every case; those of one process and those of two go on side by side.

    Raises ``AssertionError`` with what a process said, when one ends by itself or all together take too long.
    """
    job = folder / "cases.json"
    job.write_text(
        json.dumps({"plugin": plugin.__name__, "cases": {name: asdict(case) for name, case in cases.items()}})
    )
    worlds = sorted({case.processes for case in cases.values()})
    started = [_start(job, rank, world) for world in worlds for rank in range(world)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        for process, log in started:
            _check_end(process, log, deadline)
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
    return {name: _result(folder, name, case) for name, case in cases.items()}


def _start(job: Path, rank: int, world: int) -> tuple[subprocess.Popen[bytes], Path]:
    """A process, on CPUs whatever else is there, that finds the same modules as this one."""
    log = job.parent / f"log-{world}-{rank}.txt"
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [sys.executable, "-m", "mt_conformance.worker", str(job)]
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT), log


def _check_end(process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    try:
        code = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        what = f"took more than {PATIENCE_SECONDS} s" if code is None else f"ended with code {code}"
        said = log.read_text("utf-8", "replace")[-3000:]
        raise AssertionError(f"a process of the launch ({log.stem}: processes-rank) {what}. It said:\n{said}")


def _result(folder: Path, name: str, case: Case) -> Result:
    ranks = [
        json.loads((folder / f"{name}-{case.processes}-{rank}.json").read_text()) for rank in range(case.processes)
    ]
    return Result(records=ranks[0]["records"], again=ranks[0]["again"], errors=[rank["error"] for rank in ranks])
