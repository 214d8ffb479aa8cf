"""The run's folder: opened for one run only, never mixed with another, and probed before any work is done."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from mt_core.errors import OutputError
from mt_core.files.writing import open_new
from mt_train.checkpoint.file_names import ABOUT, BEFORE_THE_FIRST_STEP, FILES, FOLDERS, LOCK, RECORD
from mt_train.checkpoint.files import warn
from mt_train.checkpoint.lock import hold_lock
from mt_train.checkpoint.manifest import MANIFEST
from mt_train.checkpoint.store import has_checkpoint


def next_run_folder(stem: str, base: Path = Path("runs")) -> Path:
    """Return ``runs/<stem>-NNN`` with the next free number."""
    numbered = re.compile(re.escape(stem) + r"-([0-9]{1,9})")
    return base / f"{stem}-{_next_free_number(base, numbered):03d}"


def next_number(base: Path) -> Path:
    """``base/NNN`` with the next free number."""
    return base / f"{_next_free_number(base, re.compile('([0-9]{1,9})')):03d}"


def _next_free_number(base: Path, numbered: re.Pattern[str]) -> int:
    names = [path.name for path in base.iterdir()] if base.is_dir() else []
    return 1 + max((int(match[1]) for name in names if (match := numbered.fullmatch(name))), default=0)


@contextmanager
def open_run_folder(
    folder: Path,
    *,
    overwrite: bool = False,
    anew: bool = False,
    resume: bool = False,
    own: Collection[str] = (),
    say: Callable[[str], None] = warn,
) -> Iterator[Path]:
    """Hold the folder for one run. Raises ``OutputError`` when it is taken, foreign, not empty, not writable, or has links.

    ``overwrite`` replaces a run, ``anew`` one that saved nothing. ``own``: what components of the run write, as
    ``Component.writes`` names it.
    """
    replaces = overwrite or anew
    with ExitStack() as stack:
        with guard_writes(folder):
            _check(folder, overwrite=replaces, resume=resume, own=own)
            folder.mkdir(parents=True, exist_ok=True)
            note = stack.enter_context(hold_lock(folder / LOCK))
            _check(folder, overwrite=replaces, resume=resume, own=own)  # another run may have come and gone meanwhile
            if anew and not overwrite and has_checkpoint(folder):
                raise OutputError(f"another run has just saved in {folder}; start again to go on from there")
            _probe(folder)
            if replaces:
                _clear(folder, {*own, *read_record(folder)})
        if note:
            say(note)
        yield folder


def check_usable(folder: Path, *, overwrite: bool = False, resume: bool = False, own: Collection[str] = ()) -> None:
    """Raise what ``open_run_folder`` would, as far as it shows without writing."""
    with guard_writes(folder):
        _check(folder, overwrite=overwrite, resume=resume, own=own)


def read_record(folder: Path) -> list[str]:
    """Return what components of the run that was here have written, by its own record; nothing where that cannot be read."""
    path = folder / ABOUT
    if path.is_symlink() or not path.is_file():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8")).get(RECORD, [])
    except (ValueError, AttributeError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str) and is_inside(name)] if isinstance(names, list) else []


def is_inside(name: str) -> bool:
    """Return whether a path is below the folder that it is joined to, whatever that is."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


@contextmanager
def guard_writes(folder: Path) -> Iterator[None]:
    """Turn what the system refuses in the run's folder into one ``OutputError``."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"output {folder} cannot be written: {error.strerror}; choose another --output") from error


def _check(folder: Path, *, overwrite: bool, resume: bool, own: Collection[str]) -> None:
    """Raise ``OutputError`` unless the folder is new or empty, or may be used as it is."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"output {folder} is a file; give a folder")
    content = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    own = {*own, *read_record(folder)}
    if content and not (resume or overwrite or trained_nothing(folder, own)):
        go_on = f"continue it with --resume {folder}, " if has_checkpoint(folder) else ""
        raise OutputError(
            f"output {folder} already exists and is not empty; {go_on}replace it with --overwrite, or choose another --output"
        )
    if not overwrite:
        _refuse_links(folder, own)
        return
    if foreign := sorted(_foreign_entries(folder, content, own)):
        raise OutputError(
            f"--overwrite would leave files that no run wrote in {folder}: {', '.join(foreign)}; move them away, or"
            " choose another --output"
        )
    if content and not any((folder / name).is_file() for name in ("run.yaml", LOCK)):
        raise OutputError(
            f"--overwrite replaces a run, and {folder} is none (it has no run.yaml, only"
            f" {', '.join(sorted(content))}); choose another --output"
        )


def trained_nothing(folder: Path, own: Collection[str] = ()) -> bool:
    """Return whether the folder holds what a run leaves that was stopped, or failed, before its first step, and nothing else.

    Such a run is started again by the same command; its logs stay, and what else there is it writes anew. ``own``: what its
    components write.
    """
    content = {path.name for path in folder.iterdir()}
    later = (content & {*FILES, *FOLDERS}) - BEFORE_THE_FIRST_STEP
    if LOCK not in content or later or next(_foreign_entries(folder, content, own), None):
        return False
    records = [folder / name for name in ("metrics.jsonl", "samples.jsonl")]
    return not any(path.is_symlink() or (path.exists() and path.stat().st_size) for path in records)


def _refuse_links(folder: Path, own: Collection[str]) -> None:
    """Raise ``OutputError`` for links where a run that goes on writes: they may lead anywhere."""
    found = sorted(_links(folder, own))
    if found:
        raise OutputError(
            f"output {folder} has links where a run writes: {', '.join(found)}; put what they lead to in their place, or"
            " remove them"
        )


def _links(folder: Path, own: Collection[str]) -> Iterator[str]:
    """Links among the core's own names, and those among the components' that lead out of the folder."""
    inside = folder.resolve()
    for path in filter(Path.is_symlink, _below(folder)):
        name = path.relative_to(folder).as_posix()
        top, _, rest = name.partition("/")
        if _is_of(name, own) or any(pattern.startswith(f"{name}/") for pattern in own):
            if not Path(os.path.realpath(path)).is_relative_to(inside):
                yield name
        elif top in FILES or (top in FOLDERS and (not rest or _fits(rest.partition("/")[0], FOLDERS[top]))):
            yield name


def _foreign_entries(folder: Path, content: Iterable[str], own: Collection[str]) -> Iterator[str]:
    """Yield what is not of a run: names within the folder."""
    for name in content:
        path = folder / name
        if path.is_dir() and not path.is_symlink() and name in FOLDERS:
            yield from (f"{name}/{item.name}" for item in path.iterdir() if not _is_of_a_run(item, FOLDERS[name]))
        elif name not in FILES and not (path.is_symlink() and name in FOLDERS):
            yield from _foreign_to_components(folder, name, own)


def _foreign_to_components(folder: Path, name: str, own: Collection[str]) -> Iterator[str]:
    """The name, unless components wrote it; of a folder in which they wrote, what is not theirs."""
    path = folder / name
    if _is_of(name, own):
        return
    if path.is_dir() and not path.is_symlink() and any(pattern.startswith(f"{name}/") for pattern in own):
        for inner in path.iterdir():
            yield from _foreign_to_components(folder, f"{name}/{inner.name}", own)
    else:
        yield name


def _is_of(name: str, own: Collection[str]) -> bool:
    """Return whether components write a file, or all of the folder that it is in; beside it they leave a staged and a damaged one."""
    parents = [name, *(parent.as_posix() for parent in PurePosixPath(name).parents if parent.name)]
    return any(fnmatchcase(_final_name(path), pattern.rstrip("/")) for path in parents for pattern in own)


def _final_name(name: str) -> str:
    """``tables/a.csv`` of ``tables/.tmp-a.csv`` and ``tables/a.csv.damaged``."""
    path = PurePosixPath(name)
    return path.with_name(path.name.removeprefix(".tmp-").removesuffix(".damaged") or path.name).as_posix()


def _is_of_a_run(path: Path, patterns: Iterable[str]) -> bool:
    if path.name.startswith("step-") and not (path / MANIFEST).is_file():
        return False
    return _fits(path.name, patterns)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _probe(folder: Path) -> None:
    """Write, sync and rename a file, as a save will."""
    probe, probed = folder / ".tmp-probe", folder / ".tmp-probed"
    probe.unlink(missing_ok=True)
    with open(probe, "xb", opener=open_new) as file:
        file.write(b"probe")
        file.flush()
        os.fsync(file.fileno())
    probe.rename(probed)
    probed.unlink()


def _clear(folder: Path, own: Collection[str]) -> None:
    """Remove what a run wrote; with what its components wrote the folders go that are empty then."""
    for name in (*FOLDERS, *FILES - {LOCK}):
        _remove(folder / name)
    for path in [path for path in _below(folder) if _is_of(path.relative_to(folder).as_posix(), own)]:
        _remove(path)
    for parent in {folder / parent for name in own for parent in PurePosixPath(name).parents if parent.name}:
        if parent.is_dir() and not parent.is_symlink() and not any(parent.iterdir()):
            parent.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _below(folder: Path) -> Iterator[Path]:
    """Everything below a folder, links as they are; none is followed."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))
