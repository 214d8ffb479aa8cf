"""A run's folder, read for the page. Only ``run.yaml`` must be there; whatever else is missing is a remark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mt_core.errors import UsageError
from mt_core.protocols import NATS_PER_TOKEN
from mt_tools.report.alarms import Alarms
from mt_tools.report.checkpoint_evaluations import CheckpointFigures, read_checkpoint_evaluations
from mt_tools.report.curves import Curves
from mt_tools.report.evaluations import Evaluations
from mt_tools.report.files import lines_of, read_plain
from mt_tools.report.predictions import Predictions
from mt_tools.report.rollouts import Rollouts
from mt_tools.report.state import RunState, read_state
from mt_train.checkpoint.store import CheckpointStore
from mt_train.config.files import read_config

CONFIG = "run.yaml"
"""The file that makes a folder a run."""
ABOUT_SCHEMA = 1
"""The version of ``about.json`` that is understood here."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The data of a run for the page. ``about`` is empty for a run older than ``about.json``."""

    name: str
    folder: Path
    config: dict[str, Any]
    plugins: dict[str, str]
    about: dict[str, Any]
    curves: Curves
    samples: Predictions
    evaluations: Evaluations
    checkpoint_evaluations: tuple[CheckpointFigures, ...]
    rollouts: Rollouts
    checkpoints: tuple[int, ...]
    completed: bool
    state: RunState
    remarks: tuple[str, ...]

    @property
    def ending(self) -> dict[str, Any]:
        """Return how it ended (``reason``, ``step``, ``error``); nothing for a run that is under way, or was killed."""
        told = self.about.get("ended")
        return told if isinstance(told, dict) else {}

    @property
    def loss_unit(self) -> str:
        """Return the unit of the loss; runs before ``about.json`` said so had token losses only."""
        return str(self.about.get("loss_unit", NATS_PER_TOKEN))

    @property
    def total_steps(self) -> int | None:
        """The steps that were asked for, where the run says so."""
        train = self.config.get("train")
        asked = self.about.get("total_steps") or (train.get("steps") if isinstance(train, dict) else None)
        return asked if isinstance(asked, int) else None


def distinct_runs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The folders without repetitions, and a remark for each that was named twice."""
    found: dict[Path, Path] = {}
    remarks = []
    for path in paths:
        if (place := path.resolve()) in found:
            remarks.append(f"{path} is the same run as {found[place]}; it is shown once")
        else:
            found[place] = path
    return list(found.values()), remarks


def check(paths: Sequence[Path]) -> None:
    """Raise ``UsageError`` that names every path that is no run."""
    if problems := [problem for path in paths if (problem := _problem(path))]:
        raise UsageError(
            "\n  ".join([f"{len(problems)} of {len(paths)} are no runs:", *problems][len(problems) == 1 :])
        )


def _problem(path: Path) -> str:
    if not path.is_dir():
        return f"{path} {'is a file' if path.exists() else 'does not exist'}; give the folder of a run"
    if (path / CONFIG).is_file():
        return ""
    inside = sorted(str(entry.parent) for entry in path.glob(f"*/{CONFIG}"))
    fix = "give the folder of a run: it holds run.yaml and metrics.jsonl"
    if inside:
        fix = "these folders in it are: " + ", ".join(inside[:8]) + (", …" if len(inside) > 8 else "")
    return f"{path} is no run (it has no {CONFIG}); {fix}"


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as are needed to make the names unique."""
    parts = [path.resolve().parts for path in paths]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names


class RunLines:
    """The files of a run that grow by lines, each with the object that takes its lines in order."""

    def __init__(self) -> None:
        self.alarms, self.curves, self.samples = Alarms(), Curves(), Predictions()
        self.evaluations, self.rollouts = Evaluations(), Rollouts()

    @property
    def files(self) -> Mapping[str, TakesLines]:
        """Contents that are read line by line, by the name of their file."""
        return {f"{'metrics' if name == 'curves' else name}.jsonl": content for name, content in vars(self).items()}

    def forget(self, file: str) -> None:
        """Begin a file anew."""
        name = "curves" if file == "metrics.jsonl" else file.removesuffix(".jsonl")
        setattr(self, name, type(getattr(self, name))())


class TakesLines(Protocol):
    """Content of a file that is read line by line."""

    def add(self, line: str) -> object:
        """Take in the next line."""
        ...

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the page has to know about the file."""
        ...


def read_run(folder: Path, name: str, lines: RunLines | None = None) -> Run:
    """Read the folder of a run; ``lines`` are lines that were read before. No link in it is followed.

    Raises ``UsageError`` when its config cannot be read.
    """
    remarks = [f"{path.name} is a link, which is not followed" for path in folder.iterdir() if path.is_symlink()]
    if not (folder / CONFIG).is_file() or (folder / CONFIG).is_symlink():
        raise UsageError(f"{folder / CONFIG} is no regular file; put what it leads to in its place")
    config = read_config(folder / CONFIG)
    lock = _read_object(folder / "plugins.lock.json", remarks)
    about = _read_object(folder / "about.json", remarks)
    if about and about.get("schema") != ABOUT_SCHEMA:
        remarks.append(f"about.json has schema {about.get('schema')!r}, and this command knows {ABOUT_SCHEMA}")
    if lines is None:
        lines = RunLines()
        for file, content in lines.files.items():
            for line in lines_of(folder / file):
                content.add(line)
    completed = (folder / "completed").exists()
    return Run(
        name=name,
        folder=folder,
        config=config,
        plugins=_plugins(lock),
        about=about,
        curves=lines.curves,
        samples=lines.samples,
        evaluations=lines.evaluations,
        checkpoint_evaluations=read_checkpoint_evaluations(folder, remarks),
        rollouts=lines.rollouts,
        checkpoints=()
        if (folder / "checkpoints").is_symlink()
        else tuple(sorted(step for step, _ in CheckpointStore(folder).list())),
        completed=completed,
        state=read_state(folder, about, completed=completed, now=time.time(), step_seconds=_step_seconds(lines.curves)),
        remarks=(*remarks, *(text for file in lines.files.values() for text in file.remarks())),
    )


def _step_seconds(curves: Curves) -> float:
    """Return the mean time of a step."""
    seconds = curves.seconds.last
    return seconds[1] / max(1, curves.records) if seconds else 0.0


def _read_object(path: Path, remarks: list[str]) -> dict[str, Any]:
    """A JSON object; a file that is missing is empty, one that is broken too, with a remark."""
    try:
        text = read_plain(path)
        if text is None:
            return {}
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        remarks.append(f"{path.name} cannot be read and was left out: {error}")
        return {}
    if isinstance(content, dict):
        return content
    remarks.append(f"{path.name} is a {type(content).__name__}, not an object, and was left out")
    return {}


def _plugins(lock: dict[str, Any]) -> dict[str, str]:
    listed = lock.get("plugins")
    return {str(name): str(version) for name, version in _items(listed)}


def _items(content: Any) -> Iterator[tuple[Any, Any]]:
    return iter(content.items()) if isinstance(content, dict) else iter(())
