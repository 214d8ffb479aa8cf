"""The run's folder: opened for one run only, never mixed with another, and probed before any work is done."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mt_core.errors import OutputError

OURS = frozenset(
    {
        "run.yaml",
        "plugins.lock.json",
        "metrics.jsonl",
        "loss.png",
        "logs",
        "tensorboard",
        "completed",
        "checkpoints",
        ".lock",
    }
)
"""Everything that a run writes into its folder; ``--overwrite`` removes nothing else."""


def next_run_folder(stem: str, base: Path = Path("runs")) -> Path:
    """``runs/<stem>-NNN`` with the next free number."""
    taken = [int(path.name[len(stem) + 1 :]) for path in base.glob(f"{stem}-*") if path.name[len(stem) + 1 :].isdigit()]
    return base / f"{stem}-{max(taken, default=0) + 1:03d}"


@contextmanager
def opened(folder: Path, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
    """Hold the folder for one run. Raises ``OutputError`` when it is taken, foreign, not empty or not writable."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"output {folder} is a file; give a folder")
    content = {path.name for path in folder.iterdir()} - {".lock"} if folder.is_dir() else set()
    if content and not (resume or overwrite):
        raise OutputError(
            f"output {folder} already exists and is not empty; continue it with --resume {folder}, replace it with"
            " --overwrite, or choose another --output"
        )
    if overwrite and (foreign := sorted(content - OURS)):
        raise OutputError(
            f"--overwrite would leave files that no run wrote in {folder}: {', '.join(foreign)}; move them away"
        )
    _probe(folder)
    with _locked(folder):
        if overwrite:
            _clear(folder)
        yield folder


def _probe(folder: Path) -> None:
    """Write, sync and rename a file, as a save will."""
    probe = folder / ".tmp-probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with probe.open("w") as file:
            file.write("probe")
            file.flush()
            os.fsync(file.fileno())
        probe.rename(folder / ".tmp-probed")
        (folder / ".tmp-probed").unlink()
    except OSError as error:
        raise OutputError(f"output {folder} cannot be written: {error.strerror}; choose another --output") from error


def _clear(folder: Path) -> None:
    for name in OURS - {".lock"}:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time: an advisory lock, which the system drops when the process ends, however it ends."""
    path = folder / ".lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise OutputError(
                f"output {folder} is in use by {holder}; wait for it, or choose another --output"
            ) from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
