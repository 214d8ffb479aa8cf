"""One run, read as it grows: its figures, its texts, what it said, and its machine."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt_core import MtError
from mt_tools.report import Curves, Run, RunLines, calls_of_eval, read_run, read_state

from .tail import LINE_FILES, Tail, status_of

STATIC = ("run.yaml", "about.json", "plugins.lock.json", "completed", ".lock", "checkpoints")
MOST_EVENTS = 300
"""The newest events of a run that the page shows."""
MOST_RANKS = 64
"""Ranks whose machine is shown."""
PARTS_OF_FILES = {
    "samples.jsonl": "samples",
    "evaluations.jsonl": "evaluations",
    "rollouts.jsonl": "answers",
    "events.jsonl": "notices",
}
PARTS_OF_FOLDER = ("data", "config", "plugins", "checkpoint-evaluations")


class Machine:
    """Figures of one rank's machine, each over the seconds since the first line."""

    def __init__(self) -> None:
        self.curves = Curves()
        self.host = ""
        self.newest: dict[str, Any] = {}
        self._began: float | None = None

    def add(self, line: str) -> bool:
        """Take in the next line; false for one that is none."""
        try:
            record = json.loads(line)
            time, host = float(record.pop("time")), str(record.pop("host", ""))
            began = time if self._began is None else self._began
            seconds = max(0, round(time - began))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return False
        self._began, self.host = began, host
        figures = {key: value for key, value in record.items() if key not in ("rank", "step")}
        self.newest = figures
        return self.curves.add(json.dumps(figures | {"step": 1 + seconds}) + "\n") is not None


class RunReader:
    """Reads one folder. Several pages share it; whoever uses it holds ``lock``.

    ``epoch`` grows where figures that were read are not there any more, and ``versions`` with each change of a part of the page.
    """

    def __init__(self, identifier: str, folder: Path, name: str) -> None:
        self.identifier, self.folder, self.name = identifier, folder, name
        self.lock = threading.RLock()
        self.lines = RunLines()
        self.events: deque[Mapping[str, Any]] = deque(maxlen=MOST_EVENTS)
        self.machines: dict[str, Machine] = {}
        self.problem = ""
        self.epoch = 0
        self.versions: Counter[str] = Counter()
        self.run: Run | None = None
        self._left_out = 0
        self._unread: Counter[str] = Counter()
        self._tail = Tail(folder)
        self._static: tuple[object, ...] = ()
        self._of_folder: tuple[str, ...] = ()
        self._read = 0.0

    def refresh(self, now: float, *, every: float = 0.3) -> None:
        """Read what is new, if that was not just done; ``now`` in seconds since 1970. What cannot be read is ``problem``."""
        if abs(now - self._read) < every:
            return
        self._read = now
        try:
            if os.path.realpath(self.folder) != str(self.folder):
                raise NotADirectoryError(0, "a link stands in its place, which is not followed")
            self._tail.names = [*LINE_FILES, *self._ranks()]
            self._take_changes()
            self._read_folder(now)
            self.problem = ""
        except FileNotFoundError:
            self.problem = (
                f"{self.folder} is not there any more: it was removed or moved. What was read of it is shown."
            )
        except (OSError, MtError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.problem = f"{self.folder} cannot be read: {reason}"

    def _ranks(self) -> list[str]:
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries]
        return sorted(name for name in names if name.startswith("system-") and name.endswith(".jsonl"))[
            : MOST_RANKS - 1
        ]

    def _take_changes(self) -> None:
        first = True
        while first or self._tail.is_behind:
            first = False
            for change in self._tail.changes():
                self._left_out += change.left_out
                if change.is_anew:
                    self._forget(change.name)
                if change.name in self.lines.files:
                    self._take(change.name, change.lines)
                elif change.name == "events.jsonl":
                    events = [event for line in change.lines if (event := _event(line)) is not None]
                    self.events.extend(events)
                    self._unread[change.name] += len(change.lines) - len(events)
                else:
                    machine = self.machines.setdefault(change.name, Machine())
                    self._unread[change.name] += sum(not machine.add(line) for line in change.lines)
                if change.name in PARTS_OF_FILES:
                    self.versions[PARTS_OF_FILES[change.name]] += 1

    def _take(self, name: str, lines: tuple[str, ...]) -> None:
        if name != "metrics.jsonl":
            content = self.lines.files[name]
            for line in lines:
                content.add(line)
            return
        newest = self.lines.curves.last_step
        steps = [step for line in lines if (step := self.lines.curves.add(line)) is not None]
        if steps and newest and min(steps) <= newest:  # not in order: groups that were there have changed
            self.epoch += 1

    def _forget(self, name: str) -> None:
        self._unread.pop(name, None)
        if name in self.lines.files:
            self.lines.forget(name)
        elif name == "events.jsonl":
            self.events.clear()
        else:
            self.machines.pop(name, None)
        self.epoch += 1

    def _read_folder(self, now: float) -> None:
        """Read the files that do not grow where one has changed, and the state in any case."""
        static = tuple(status_of(self.folder / name) for name in STATIC)
        evaluated = tuple(map(status_of, calls_of_eval(self.folder)[:1]))
        if self.run is None or (static, evaluated) != self._static:
            run = read_run(self.folder, self.name, self.lines)
            self._of_folder = run.remarks[: len(run.remarks) - sum(1 for _ in self._of_lines())]
            self.run = replace(run, remarks=self._remarks())
            self._static = static, evaluated
            self.versions.update(PARTS_OF_FOLDER)
            return
        completed = static[STATIC.index("completed")] is not None
        state = read_state(self.folder, self.run.about, completed=completed, now=now, step_seconds=self._step_seconds())
        lines = self.lines
        self.run = replace(
            self.run,
            state=state,
            curves=lines.curves,
            samples=lines.samples,
            evaluations=lines.evaluations,
            rollouts=lines.rollouts,
            remarks=self._remarks(),
        )

    def _of_lines(self) -> Iterator[str]:
        return (text for file in self.lines.files.values() for text in file.remarks())

    def _remarks(self) -> tuple[str, ...]:
        """Return what was told of the folder when it was read, then what is told of its lines now."""
        left_out = [f"{self._left_out:,} line(s) are too long and were left out"] if self._left_out else []
        unread = [
            f"{count:,} line(s) of {name} cannot be read and were left out"
            for name, count in self._unread.items()
            if count
        ]
        return (*self._of_folder, *self._of_lines(), *unread, *left_out)

    def _step_seconds(self) -> float:
        seconds = self.lines.curves.seconds.last
        return seconds[1] / max(1, self.lines.curves.records) if seconds else 0.0


def _event(line: str) -> Mapping[str, Any] | None:
    try:
        event = json.loads(line)
        time, step = float(event["time"]), int(event["step"])
        if not math.isfinite(time) or not 0 <= step < 2**53:
            return None
        return {
            "time": time,
            "step": step,
            "kind": str(event["kind"])[:40],
            "text": str(event["text"])[:2000],
        }
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
