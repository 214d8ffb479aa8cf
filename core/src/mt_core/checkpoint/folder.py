"""The run's folder: opened for one run only, never mixed with another, and probed before any work is done."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from mt_core.checkpoint.files import warn
from mt_core.checkpoint.lock import held
from mt_core.checkpoint.manifest import MANIFEST
from mt_core.checkpoint.store import has_checkpoint
from mt_core.errors import OutputError
from mt_core.weights.files import sync

LOCK = ".lock"
FILES = frozenset(
    {
        LOCK,
        "run.yaml",
        "about.json",
        "samples.jsonl",
        "report.html",
        "plugins.lock.json",
        "metrics.jsonl",
        "loss.png",
        "completed",
        "metrics.jsonl.damaged",
        "samples.jsonl.damaged",
        ".tmp-run.yaml",
        ".tmp-about.json",
        ".tmp-plugins.lock.json",
        ".tmp-metrics.jsonl",
        ".tmp-samples.jsonl",
        ".tmp-loss.png",
        ".tmp-probe",
        ".tmp-probed",
    }
)
FOLDERS = {
    "logs": ("rank-*.log",),
    "eval": ("[0-9][0-9][0-9]*",),
    "tensorboard": ("events.out.tfevents.*",),
    "checkpoints": ("latest", ".tmp-latest", "step-????????", ".tmp-*step-????????"),
}
"""With ``FILES`` everything that a run writes into its folder; ``--overwrite`` removes nothing else."""


def next_run_folder(stem: str, base: Path = Path("runs")) -> Path:
    """``runs/<stem>-NNN`` with the next free number."""
    numbered = re.compile(re.escape(stem) + r"-([0-9]{1,9})")
    return base / f"{stem}-{_free_number(base, numbered):03d}"


def next_number(base: Path) -> Path:
    """``base/NNN`` with the next free number."""
    return base / f"{_free_number(base, re.compile('([0-9]{1,9})')):03d}"


def _free_number(base: Path, numbered: re.Pattern[str]) -> int:
    names = [path.name for path in base.iterdir()] if base.is_dir() else []
    return 1 + max((int(match[1]) for name in names if (match := numbered.fullmatch(name))), default=0)


@contextmanager
def opened(
    folder: Path,
    *,
    overwrite: bool = False,
    anew: bool = False,
    resume: bool = False,
    say: Callable[[str], None] = warn,
) -> Iterator[Path]:
    """Hold the folder for one run. Raises ``OutputError`` when it is taken, foreign, not empty or not writable.

    ``overwrite`` replaces a run, ``anew`` one that saved nothing.
    """
    replaces = overwrite or anew
    with ExitStack() as stack:
        with writing(folder):
            _check(folder, overwrite=replaces, resume=resume)
            folder.mkdir(parents=True, exist_ok=True)
            note = stack.enter_context(held(folder / LOCK))
            _check(folder, overwrite=replaces, resume=resume)  # another run may have come and gone meanwhile
            if anew and not overwrite and has_checkpoint(folder):
                raise OutputError(f"another run has just saved in {folder}; start again to go on from there")
            _probe(folder)
            if replaces:
                _clear(folder)
        if note:
            say(note)
        yield folder


def check_usable(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Raise what ``opened`` would, as far as it shows without writing."""
    with writing(folder):
        _check(folder, overwrite=overwrite, resume=resume)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the system refuses in the run's folder, as one ``OutputError``."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"output {folder} cannot be written: {error.strerror}; choose another --output") from error


def _check(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Raise ``OutputError`` unless the folder is new or empty, or may be used as it is."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"output {folder} is a file; give a folder")
    content = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    if content and not (resume or overwrite):
        raise OutputError(
            f"output {folder} already exists and is not empty; continue it with --resume {folder}, replace it with"
            " --overwrite, or choose another --output"
        )
    if not overwrite:
        return
    if foreign := sorted(_foreign(folder, content)):
        raise OutputError(
            f"--overwrite would leave files that no run wrote in {folder}: {', '.join(foreign)}; move them away, or"
            " choose another --output"
        )
    if content and not any((folder / name).is_file() for name in ("run.yaml", LOCK)):
        raise OutputError(
            f"--overwrite replaces a run, and {folder} is none (it has no run.yaml, only"
            f" {', '.join(sorted(content))}); choose another --output"
        )


def _foreign(folder: Path, content: Iterable[str]) -> Iterator[str]:
    """What is not of a run: names within the folder."""
    for name in content:
        path = folder / name
        if path.is_dir() and not path.is_symlink() and name in FOLDERS:
            yield from (f"{name}/{item.name}" for item in path.iterdir() if not _is_of_a_run(item, FOLDERS[name]))
        elif name not in FILES and not (path.is_symlink() and name in FOLDERS):
            yield name


def _is_of_a_run(path: Path, patterns: Iterable[str]) -> bool:
    if path.name.startswith("step-") and not (path / MANIFEST).is_file():
        return False
    return any(fnmatchcase(path.name, pattern) for pattern in patterns)


def _probe(folder: Path) -> None:
    """Write, sync and rename a file, as a save will."""
    probe, probed = folder / ".tmp-probe", folder / ".tmp-probed"
    probe.write_text("probe")
    sync(probe)
    probe.rename(probed)
    probed.unlink()


def _clear(folder: Path) -> None:
    for name in (*FOLDERS, *FILES - {LOCK}):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
