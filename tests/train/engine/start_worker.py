"""Counts groups, collectives and files of real runs: until their first step, in a save, and on a resume. Run by test_start_counts.py.

``start_worker.py CASES ROWS OUT`` with JSON: name -> config, in which ``resume`` names the case that goes on.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mt_train import train
from mt_train.assemble import steps
from mt_train.assemble.session import Session
from mt_train.checkpoint import tensors
from mt_train.checkpoint.store import CheckpointStore

RANK = int(os.environ["RANK"])
COLLECTIVES = (
    *("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast_object_list"),
    *("barrier", "gather", "gather_object", "reduce", "reduce_scatter_tensor", "scatter", "all_to_all_single"),
)


class Counts:
    """Calls of torch.distributed, and files of a folder that were opened, by phase of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.calls: Counter[str] = Counter()
        self.files: set[str] = set()
        self.phases: dict[str, dict[str, Any]] = {}

    def end(self, phase: str) -> None:
        """Let what was counted since the last phase be this one's; a phase is counted once."""
        self.phases.setdefault(phase, {"calls": dict(self.calls), "files": sorted(self.files)})
        self.calls.clear()
        self.files.clear()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of Python."""
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if path.startswith(self.folder) and not Path(path).is_dir():
                self.files.add(path.removeprefix(self.folder).partition("/")[2])

    def watch(self, module: Any, name: str, counted_as: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def counted(*arguments: Any, **options: Any) -> Any:
            if (
                threading.current_thread() is threading.main_thread()
            ):  # what a stream exchanges beside training is counted apart
                self.calls[counted_as] += 1
            return original(*arguments, **options)

        setattr(module, name, counted)


def around(owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        before()
        result = original(*arguments, **options)
        after()
        return result

    setattr(owner, name, wrapped)


def main(cases: dict[str, Any], out: Path) -> None:
    counts = Counts(out.parent)
    for name in COLLECTIVES:
        counts.watch(dist, name, "collectives")
    counts.watch(dist, "new_group", "groups")
    around(steps, "verify_together", lambda: None, lambda: counts.end("verified"))
    around(Session, "_on_step_start", lambda: counts.end("start"), lambda: None)
    around(CheckpointStore, "save", lambda: counts.end("steps"), lambda: counts.end("save"))
    sys.addaudithook(counts.hear)
    open_tensors = tensors.safe_open  # in Rust, of which Python hears nothing

    def safe_open(path: str, **options: Any) -> Any:
        counts.hear("open", (path,))
        return open_tensors(path, **options)

    tensors.safe_open = safe_open  # type: ignore[assignment]
    found = {}
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what a run shows is not looked at
    for number, (name, config) in enumerate(cases.items()):
        os.environ["MT_STORE"] = str(out.parent / f"store-{number}-of-{len(cases)}-{os.environ['WORLD_SIZE']}")
        source = config.pop("resume", None)
        counts.phases = {}
        counts.end("nothing")
        if source is None:
            train(config, output=out.parent / name)
        else:
            train(config, resume=out.parent / source)
        found[name] = counts.phases
        gc.collect()
    out.with_name(f"rank-{RANK}.json").write_text(json.dumps(found))
    if RANK == 0:
        out.write_text("{}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[3]))
