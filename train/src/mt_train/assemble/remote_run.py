"""A run behind an address (``s3://bucket/runs/NAME``, as callback ``upload`` leaves it), fetched to go on with it here.

Imports no torch.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mt_core.errors import CheckpointError, OutputError
from mt_core.files import RemoteFile, storage
from mt_core.files.scratch import scratch_folder
from mt_core.plugins.lock_file import RUN_FILE
from mt_train.checkpoint.file_names import FILES, LOCK
from mt_train.checkpoint.folder import is_inside
from mt_train.checkpoint.manifest import MANIFEST, read_manifest, verify
from mt_train.checkpoint.store import FOLDER, CheckpointStore, has_checkpoint
from mt_train.data.locks import hold_lock
from mt_train.tracking.logs import first_notice

_STEP = re.compile(rf"(?P<run>.+)/{FOLDER}/(?P<step>step-[0-9]{{8}})")
_WHOLE = re.compile(rf"{FOLDER}/(?P<step>step-[0-9]{{8}})/{MANIFEST}")
_OWN = FILES - {LOCK}


def fetch_run(url: str, output: Path | None = None) -> Path:
    """Fetch a run's files and its last whole checkpoint, or the one that is named, into ``output`` (``runs/NAME``); that folder.

    One process of a machine fetches, what is here already stays. A checkpoint whose manifest has not arrived in the bucket, where it
    goes last, is not there. Raises ``CheckpointError`` where there is none, where it is damaged, or another run has the folder.
    """
    named = _STEP.fullmatch(url.rstrip("/"))
    run = named["run"] if named else url.rstrip("/")
    folder = output or Path("runs") / PurePosixPath(run).name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.fetch.lock")
        with hold_lock(lock, lambda _: first_notice(f"notice: waiting for another process that fetches {run}")):
            _fetch_missing(run, folder, named["step"] if named else None)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}; choose another --output") from error
    return folder


def _fetch_missing(run: str, folder: Path, wanted: str | None) -> None:
    files = _files_of_run(run)
    steps = sorted(match["step"] for name in files if (match := _WHOLE.fullmatch(name)))
    if not steps or (wanted or steps[-1]) not in steps or RUN_FILE not in files:
        has = f"whole are {', '.join(steps[-5:])}" if steps else f"no {FOLDER}/step-…/{MANIFEST}, which arrives last"
        raise CheckpointError(
            f"{run} has no {RUN_FILE}" * (RUN_FILE not in files) or f"{run} has no checkpoint {wanted or ''}: {has}"
        )
    step = wanted or steps[-1]
    final, staging = folder / FOLDER / step, folder / FOLDER / f".tmp-{step}"
    if not has_checkpoint(folder):
        _refuse_content(folder, run)
        for name in sorted(_OWN & files.keys()):
            _fetch_anew(files[name], folder / name)
    elif not _is_same_run(files, folder):
        raise CheckpointError(
            f"{folder} is another run than {run}, with which it has no checkpoint in common: give another --output, or go on from here with"
            f" --resume {folder}"
        )
    store = CheckpointStore(folder)
    if (last := store.latest()) is not None and wanted is None and last.name >= step:
        first_notice(f"notice: {last} is no older than what {run} has, so the run goes on from there")
        return
    if not (final / MANIFEST).is_file():
        _fetch_checkpoint(files, f"{FOLDER}/{step}", staging)
        staging.rename(final)
    store.point(final)
    first_notice(f"notice: fetched {step} of {run} into {folder}")


def _files_of_run(run: str) -> dict[str, RemoteFile]:
    """Path below the run → file; nothing that leads out of it."""
    return {name: each for name, each in storage().files_below(run).items() if is_inside(name)}


def _fetch_checkpoint(files: Mapping[str, RemoteFile], inside: str, staging: Path) -> None:
    """The files that its manifest names, each with the size and the hash that stand there."""
    staging.mkdir(parents=True, exist_ok=True)
    _fetch_anew(files[f"{inside}/{MANIFEST}"], staging / MANIFEST)
    named = read_manifest(staging)["files"]
    if missing := sorted(name for name in named if f"{inside}/{name}" not in files or not is_inside(name)):
        raise CheckpointError(
            f"{inside} lacks {', '.join(missing[:5])}, which its manifest names; name another checkpoint"
        )
    for name in named:
        storage().fetch(files[f"{inside}/{name}"], staging / name)
    _sweep(staging)
    try:
        verify(staging)
    except CheckpointError:
        shutil.rmtree(staging)
        raise


def _fetch_anew(file: RemoteFile, place: Path) -> None:
    place.unlink(missing_ok=True)
    storage().fetch(file, place)
    _sweep(place.parent)


def _sweep(folder: Path) -> None:
    """Remove locks and parts of what was fetched: this process has the lock above them."""
    for path in [*folder.rglob(".*.lock"), *folder.rglob(".*.part")]:
        path.unlink()


def _refuse_content(folder: Path, run: str) -> None:
    """A fetch that was cut off goes on; anything else in the folder is somebody's."""
    content = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if foreign := sorted(name for name in content - _OWN - {FOLDER} if not name.startswith(".")):
        raise CheckpointError(
            f"{folder} has {', '.join(foreign[:5])} and no checkpoint: give another --output for {run}"
        )


def _is_same_run(files: Mapping[str, RemoteFile], folder: Path) -> bool:
    """Return whether a save of both is the same one, or their configs are; a run that goes on writes its config anew."""
    saves = [f"{FOLDER}/{path.name}/{MANIFEST}" for _, path in CheckpointStore(folder).list()]
    return any(name in files and _is_equal(files[name], folder / name) for name in (*saves, RUN_FILE))


def _is_equal(file: RemoteFile, here: Path) -> bool:
    with scratch_folder() as folder:
        storage().fetch(file, folder / "there")
        return here.is_file() and (folder / "there").read_bytes() == here.read_bytes()
