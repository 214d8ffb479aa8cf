"""Stops runs after every step and goes on, and says what differs from the run that was not stopped. Run by test_resume.py."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from layout_worker import Bench, Losses, StopAfter, main, manifest_to_go_on, settle, state_hash

from mt_train.assemble.callbacks import Callbacks
from mt_train.assemble.session import Session
from mt_train.checkpoint.store import find, step_name
from mt_train.engine.random_state import random_numbers, random_tensors, seed_everything

STEPS = 20


class Trace:
    """What a run computed, step by step, and the state that it ended in."""

    def __init__(self, session: Session) -> None:
        self.session, self.records, self.rows = session, Losses(), []
        windows = session.loader.windows

        def recorded(position: Any, *others: Any) -> Iterator[Any]:
            for window in windows(position, *others):
                self.rows.append(list(window.row_ids))
                yield window

        session.loader.windows = recorded

    def train(self, checkpoint: Path | None = None) -> dict[str, Any]:
        """From a checkpoint, or from the start, to where a callback or the plan ends it."""
        manifest = None if checkpoint is None else manifest_to_go_on(checkpoint)
        if checkpoint is not None:
            seed_everything(99, self.session.process.rank)  # what is restored must win
        self.session.loop(self.session.restore(checkpoint, manifest), self.records)
        return {
            "losses": [record.loss for record in self.records.records],
            "rates": [record.lr for record in self.records.records],
            "evaluations": [dict(record.evaluation) for record in self.records.records],
            "tokens": [record.tokens for record in self.records.records],
            "rows": self.rows,
            "state": state_hash(self.session.engine),
            "random": random_hash(self.session),
        }


def random_hash(session: Session) -> str:
    """SHA-256 of every generator of every rank."""
    tensors = random_tensors(session.process.device)
    digest = hashlib.sha256(repr(random_numbers()).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].numpy().tobytes())
    hashes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, digest.hexdigest())
    return "".join(hashes)


def differences(whole: dict[str, Any], part: dict[str, Any], done: int) -> list[str]:
    """Names of what a run that went on after ``done`` steps has otherwise than the whole run."""
    return [
        key for key, value in part.items() if value != (whole[key][done:] if isinstance(value, list) else whole[key])
    ]


class Stops(Bench):
    """Runs that are stopped."""

    def folder(self) -> Path:
        """A new one, for all ranks."""
        self.folders = getattr(self, "folders", 0) + 1
        folder = Path(sys.argv[3]).parent / f"run-{self.process.world}-{self.folders}"
        folder.mkdir(exist_ok=True)
        return folder

    def trace(
        self, case: dict[str, Any], output: Path | None, checkpoint: Path | None, stop: int = 0
    ) -> dict[str, Any]:
        self.deepspeed.utils.groups.mpu = None
        settle()
        session = self.session(case, output, checkpoint)
        if stop:
            session.events.callbacks = Callbacks({"stop": StopAfter(stop)})
        return Trace(session).train(checkpoint)

    def every(self, case: dict[str, Any]) -> dict[str, Any]:
        """A run that saves every step; then one run from each of its checkpoints, or from those of ``stops``."""
        case = {"steps": STEPS, "eval_every": 5, **case, "checkpoint": {"every_steps": 1, **case.get("checkpoint", {})}}
        output = self.folder()
        whole = self.trace(case, output, None)
        found = {
            step: differences(whole, self.trace(case, None, output / "checkpoints" / step_name(step)), step)
            for step in case.get("stops", range(1, STEPS))
        }
        return {
            "steps": len(whole["losses"]),
            "stops": [*found],
            "different": {step: keys for step, keys in found.items() if keys},
        }

    def chain(self, case: dict[str, Any]) -> dict[str, Any]:
        """A run that is stopped and resumed five times."""
        case = {"steps": STEPS, "eval_every": 5, **case}
        whole, output = self.trace(case, None, None), self.folder()
        part = self.trace(case, output, None, stop=2)
        done = 2
        for stop in (3, 7, 12, 19, 0):
            part = self.trace(case, output, find(output), stop)
            if stop:
                done = stop
        return {"steps": len(whole["losses"]), "different": differences(whole, part, done)}


if __name__ == "__main__":
    main(Stops)
