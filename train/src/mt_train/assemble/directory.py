"""The directory in which a run began, where its relative paths start, wherever the run is gone on with or read.

Each checkpoint has it, with the place of the run's folder. A run that is not where it was has been taken elsewhere, to another
machine or with its project, and its relative paths start where a command starts. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import find
from mt_train.tracking.logs import first_notice

VARIABLES = (
    *("MT_CACHE", "MT_PATHS", "PYTHONPATH", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
)
"""Variables of the environment that are paths, or several with ``os.pathsep`` between: a relative one starts where the command does."""
KEY = "began"
"""Key of a manifest: ``directory``, and ``run``, the place of the run's folder."""


def describe_directory(directory: str, output: Path) -> dict[str, str]:
    """Return what a manifest keeps of a run that works in ``directory``, and whose folder is ``output``."""
    return {"directory": directory, "run": os.path.join(directory, output)}


def directory_of(manifest: Mapping[str, Any], run: Path) -> Path | None:
    """Return where the relative paths of a run start, whose folder is ``run``; ``None``: where the command does."""
    began = manifest.get(KEY)
    if began is None or not _is_open(began["directory"]):
        return None
    has_moved = os.path.realpath(run) != os.path.realpath(began["run"])
    return None if has_moved else Path(began["directory"])


def _is_open(directory: str) -> bool:
    """Return whether a directory is there and may be worked in: another person's home, where a shared run began, may not."""
    return os.path.isdir(directory) and os.access(directory, os.X_OK)


def path_from(here: Path, path: Path) -> Path:
    """Return a path of a command that started in ``here``, without ``..`` unless that leads elsewhere, as behind a link."""
    joined = here / path
    plain = Path(os.path.normpath(joined))
    return plain if os.path.realpath(plain) == os.path.realpath(joined) else joined


@contextmanager
def working_in_directory(folder: Path | None) -> Iterator[Path]:
    """Work where the run in ``folder`` began, which is gone on with, and say so where the command started elsewhere.

    Yields the directory that the command's own relative paths start at: absolute where the run's start at another one. Raises
    ``CheckpointError`` where there is no run.
    """
    here = Path()
    if folder is None:
        yield here
        return
    checkpoint = find(folder)
    run, manifest = checkpoint.parent.parent, read_manifest(checkpoint)
    began, directory = manifest.get(KEY), directory_of(manifest, run)
    if began is None or began["directory"] == (started := os.getcwd()):
        yield here
    elif directory is None:
        has_moved = _is_open(began["directory"])
        cause = f"and its folder was {began['run']}" if has_moved else "which is not there or not to be entered"
        first_notice(
            f"notice: the run began in {began['directory']}, {cause}; its relative paths start in {started} from here on"
        )
        yield here
    else:
        first_notice(f"notice: relative paths of the run start in {directory}, where it began, and not in {started}")
        with _variables_from(started):
            os.chdir(directory)
            try:
                yield Path(started)
            finally:
                os.chdir(started)


@contextmanager
def _variables_from(started: str) -> Iterator[None]:
    """Have the paths of the environment start in ``started``, also for processes that are started meanwhile."""
    before = {name: value for name in VARIABLES if (value := os.environ.get(name))}
    for name, value in before.items():
        paths = (path if path.startswith("~") else os.path.join(started, path) for path in value.split(os.pathsep))
        os.environ[name] = os.pathsep.join(paths)
    try:
        yield
    finally:
        os.environ.update(before)
