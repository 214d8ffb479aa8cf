"""Kills runs at random moments and goes on, and says what differs from the run that was not killed. Run by test_resume.py.

Each attempt is a fork of this process, which has imported everything once.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from layout_worker import Bench
from resume_worker import STEPS, Trace

from mt_core.plugins.host import PluginHost
from mt_train.assemble.callbacks import CallbackContext, Callbacks
from mt_train.checkpoint.store import find, has_checkpoint
from mt_train.engine.deepspeed_import import import_deepspeed
from mt_train.engine.processes import Process, join_group

KILLS = 3
LATE = "deepspeed.runtime.zero.muon.muon_optimizer"
"""What DeepSpeed imports only when ZeRO starts, and torch's compiler with it."""


class KillSoonAfter:
    """A callback that lets a step begin and ends the process, without a word, within the next ``delay`` seconds."""

    def __init__(self, step: int, delay: float) -> None:
        self.step, self.delay = step, delay

    def on_step_start(self, context: CallbackContext) -> None:
        if context.step == self.step:
            threading.Timer(self.delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


def attempt(action: Callable[[], object]) -> int:
    """Do it in a fork; the signal that ended it, or its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent has to hear of it, and this process must never go on
            traceback.print_exc()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Runs:
    """The runs of one rank."""

    def __init__(self, process: Process, rows: Path, folder: Path) -> None:
        self.process, self.rows, self.folder, self.host = process, rows, folder, PluginHost.discover()
        self.count = 0

    def train(self, case: dict[str, Any], output: Path, out: Path | None, kill: tuple[int, float] | None) -> int:
        """One attempt: from the last checkpoint, if there is one, until it is killed or complete."""
        self.count += 1
        os.environ["MT_STORE"] = str(self.folder / f"store-{self.count}")

        def action() -> None:
            with join_group(self.process, 30) as deepspeed:
                checkpoint = find(output) if has_checkpoint(output) else None
                session = Bench(self.host, self.process, deepspeed, self.rows).session(case, output, checkpoint)
                if kill is not None:
                    session.events.callbacks = Callbacks({"kill": KillSoonAfter(*kill)})
                trace = Trace(session).train(checkpoint)
                if out is not None and self.process.is_main:
                    out.write_text(json.dumps(trace))

        return attempt(action)

    def compare(self, name: str, case: dict[str, Any]) -> dict[str, Any]:
        """Kills of one rank or the other; the other then fails, as it would in a real run."""
        case = {"steps": STEPS, "eval_every": 5, **case, "checkpoint": {"every_steps": 1, **case.get("checkpoint", {})}}
        chance, killed = random.Random(name), []
        whole, parts = self.folder / f"{name}-whole.json", self.folder / f"{name}-parts.json"
        assert self.train(case, self.folder / f"{name}-whole", whole, None) == 0
        for step in sorted(chance.sample(range(2, case["steps"] - 2), KILLS)):
            victim, delay = chance.randrange(self.process.world), chance.random() / 20
            kill = (step, delay) if self.process.rank == victim else None
            killed.append(self.train(case, self.folder / f"{name}-parts", None, kill))
        assert self.train(case, self.folder / f"{name}-parts", parts, None) == 0
        if not self.process.is_main:
            return {}
        one, other = json.loads(whole.read_text()), json.loads(parts.read_text())
        ends = ["state", "random"]
        lists = [key for key in other if key not in ends]
        different = [key for key in ends if one[key] != other[key]]
        different += [key for key in lists if other[key] != one[key][len(one[key]) - len(other[key]) :]]
        return {"killed": killed, "different": different, "steps": len(one["losses"])}


def main() -> None:
    cases, rows, out = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    process = Process.from_environment()
    import_deepspeed(process.device)
    importlib.import_module(LATE)
    gc.freeze()  # or every fork walks and copies all of it
    runs = Runs(process, rows, out.parent)
    for folder in (out.parent / f"{name}-{kind}" for name in cases for kind in ("whole", "parts")):
        folder.mkdir(exist_ok=True)
    found = {name: runs.compare(name, case) for name, case in cases.items()}
    if process.is_main:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
