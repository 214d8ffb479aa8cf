"""Checkpoints that are whole or not there: staged, hashed, renamed, and only then pointed at.

The order (after SQLite's and LevelDB's manifest protocols): every rank writes into ``.tmp-step-…``; all agree; files
and folder are synced; ``manifest.json`` with the size and SHA-256 of every file comes last; the folder is renamed; its
parent is synced; ``latest`` is replaced. A crash at any point leaves the previous checkpoint in place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mt_core.checkpoint.tensors import read_json, refuse_special, write_json
from mt_core.errors import CheckpointError

FOLDER = "checkpoints"
LATEST = "latest"
MANIFEST = "manifest.json"
FORMAT = 1
_STEP = re.compile(r"step-(\d{8})")
_CHUNK = 4 * 2**20


def step_name(step: int) -> str:
    """Folder name of a step."""
    return f"step-{step:08d}"


class CheckpointStore:
    """The checkpoints of one run. ``save`` is collective; the rest is for any rank."""

    def __init__(
        self,
        run_folder: Path,
        *,
        rank: int = 0,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self.folder = run_folder / FOLDER
        self.rank = rank
        self._agree = agree

    def save(self, step: int, *, write: Callable[[Path], None], manifest: Mapping[str, Any], keep_last: int) -> Path:
        """Commit one checkpoint; ``write(folder)`` puts this rank's files there.

        Raises ``CheckpointError`` on every rank when any rank failed; earlier checkpoints stay as they were.
        """
        final, staging = self.folder / step_name(step), self.folder / f".tmp-{step_name(step)}"
        self._phase("prepare", staging, lambda: self._prepare(staging))
        self._phase("write", staging, lambda: write(staging))
        self._phase("commit", staging, lambda: self._commit(staging, final, step, manifest))
        if self.rank == 0:
            self._rotate(keep_last)
        return final

    def _phase(self, what: str, staging: Path, action: Callable[[], None]) -> None:
        """Run one phase on every rank; when it fails on any, all of them raise and the debris goes."""
        failure: Exception | None = None
        try:
            action()
        except (OSError, CheckpointError, ValueError) as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - safetensors raises its own class for a full disk; re-raised below
            failure = error
        if self._agree(failure is None):
            return
        if self.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        cause = f"{type(failure).__name__}: {failure}" if failure else "another rank failed"
        raise CheckpointError(
            f"could not {what} the checkpoint in {staging.parent}: {cause}."
            f" {_space(staging.parent)}Earlier checkpoints are untouched."
        ) from failure

    def _prepare(self, staging: Path) -> None:
        if self.rank == 0:
            if staging.exists():
                shutil.rmtree(staging)
            (staging / "model").mkdir(parents=True)
            (staging / "state").mkdir()

    def _commit(self, staging: Path, final: Path, step: int, manifest: Mapping[str, Any]) -> None:
        if self.rank != 0:
            return
        files = {}
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                _sync(path)
                files[path.relative_to(staging).as_posix()] = {"size": path.stat().st_size, "sha256": sha256(path)}
        write_json(staging / MANIFEST, {"format": FORMAT, "step": step, **manifest, "files": files})
        _sync(staging / MANIFEST)
        for folder in (staging / "model", staging / "state", staging):
            _sync(folder)
        if final.exists():  # the same step again, after a resume: the old one steps aside until the new one is in place
            aside = self.folder / f".tmp-old-{final.name}"
            shutil.rmtree(aside, ignore_errors=True)
            final.rename(aside)
            staging.rename(final)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            staging.rename(final)
        _sync(self.folder)
        pointer = self.folder / f".tmp-{LATEST}"
        pointer.write_text(final.name + "\n", encoding="utf-8")
        _sync(pointer)
        os.replace(pointer, self.folder / LATEST)
        _sync(self.folder)

    def _rotate(self, keep_last: int) -> None:
        for _, path in self.list()[:-keep_last]:
            shutil.rmtree(path)

    def list(self) -> list[tuple[int, Path]]:
        """(step, folder) of every checkpoint with a manifest of ours, oldest first."""
        if not self.folder.is_dir():
            return []
        found = []
        for path in self.folder.iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir() and not path.is_symlink() and (path / MANIFEST).is_file():
                found.append((int(match[1]), path))
        return sorted(found)

    def latest(self) -> Path | None:
        """The last acknowledged checkpoint; ``None`` when there is none.

        Raises ``CheckpointError`` when ``latest`` names something that is not there.
        """
        pointer = self.folder / LATEST
        if not pointer.exists():
            return None
        refuse_special(pointer)
        name = pointer.read_text(encoding="utf-8", errors="replace").strip()
        path = self.folder / name
        if not _STEP.fullmatch(name) or not (path / MANIFEST).is_file():
            known = ", ".join(path.name for _, path in self.list()) or "none"
            raise CheckpointError(
                f"{pointer} names {name!r}, which is no checkpoint here; whole ones: {known}. Give one of them as --resume"
            )
        return path


def verify(folder: Path) -> dict[str, Any]:
    """Check presence, size and SHA-256 of every file of a checkpoint; returns its manifest.

    Raises ``CheckpointError`` that names the first file that differs.
    """
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder} has format {manifest.get('format')!r}; this version reads {FORMAT}")
    files: dict[str, dict[str, Any]] = manifest["files"]
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} - {MANIFEST}
    if extra := sorted(present - set(files)):
        raise CheckpointError(f"{folder} holds files that its manifest does not list: {', '.join(extra)}; remove them")
    for name, expected in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{folder / MANIFEST} names {name!r}, which is outside the checkpoint")
        refuse_special(path)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; use an earlier checkpoint")
        if path.stat().st_size != expected["size"]:
            raise CheckpointError(
                f"{path} has {path.stat().st_size} bytes and should have {expected['size']}; use an earlier checkpoint"
            )
        if sha256(path) != expected["sha256"]:
            raise CheckpointError(
                f"{path} is damaged: its SHA-256 differs from the manifest's; use an earlier checkpoint"
            )
    return manifest


def find(path: Path) -> Path:
    """The checkpoint that a path means: a checkpoint folder, or a run's last one."""
    if (path / MANIFEST).is_file():
        return path
    latest = CheckpointStore(path).latest() if path.is_dir() else None
    if latest is None:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise CheckpointError(f"{path.absolute()} {what}; give a run's folder or one of its checkpoints")
    return latest


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _space(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f"{free / 2**30:.2f} GiB are free there. "
