"""Checkpoints that are whole or not there: staged, hashed, renamed, and only then pointed at.

The order (after SQLite's and LevelDB's manifest protocols): every rank writes into ``.tmp-step-…``; all agree; files
and folders are synced; ``manifest.json`` with the size and SHA-256 of every file comes last; the folder is renamed; its
parent is synced; ``latest`` is replaced; only then do older checkpoints go. A crash at any point leaves the previous
checkpoint or the new one. All ranks must see the same folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError, did_you_mean
from mt_core.files.writing import sync
from mt_train.checkpoint.files import amount, free_bytes, is_full, refuse_special, replace_text, sizes, warn
from mt_train.checkpoint.manifest import (
    MANIFEST,
    STEP_FOLDER,
    describe,
    is_ours,
    is_whole,
    others,
    read_manifest,
    verify,
    why_not_ours,
    write_manifest,
)
from mt_train.checkpoint.retention import Retention, SavedCheckpoint
from mt_train.checkpoint.tensors import read_json, write_json

__all__ = ["FOLDER", "LATEST", "CheckpointStore", "Retention", "SavedCheckpoint", "find", "step_name", "verify"]

FOLDER = "checkpoints"
LATEST = "latest"
_ENTRIES = ".entries-"
"""File in which each rank leaves the size and hash of its files, until the manifest has them."""
_DEBRIS = re.compile(r"\.tmp-(|replaced-|gone-)(step-[0-9]{8})")


def step_name(step: int) -> str:
    """Folder name of a step."""
    return f"step-{step:08d}"


class CheckpointStore:
    """The checkpoints of one run. ``save`` is collective; the rest is for any rank.

    ``agree(ok)`` waits for all ranks and returns whether every one said True. ``say`` gets what is not worth an error.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        rank: int = 0,
        agree: Callable[[bool], bool] = bool,
        say: Callable[[str], None] = warn,
    ) -> None:
        self.folder = run_folder / FOLDER
        self.rank = rank
        self._agree = agree
        self._say = say

    # ------------------------------------------------------------------------------------------------------- saving

    def save(
        self, step: int, *, write: Callable[[Path], Iterable[Path]], manifest: Mapping[str, Any], keep: Retention
    ) -> Path:
        """Commit one checkpoint; ``write(folder)`` puts this rank's files there and names them. One of this step is replaced.

        The manifest's ``evaluation`` holds the figures by which the best are found. Raises ``CheckpointError`` on every rank
        when any rank failed; earlier checkpoints then stay as they were.
        """
        assert keep.last > 0, f"{keep} would delete the checkpoint just written"
        final, staging = self.folder / step_name(step), self.folder / f".tmp-{step_name(step)}"
        self._phase("prepare", staging, lambda: self._prepare(staging))
        self._phase("write", staging, lambda: self._write(staging, write))
        self._phase("commit", staging, lambda: self._commit(staging, final, step, manifest))
        if self.rank == 0:
            self.prune(keep)
        return final

    def _phase(self, what: str, staging: Path, action: Callable[[], None]) -> None:
        """Run one phase on every rank; when it fails on any, all of them raise and the debris goes."""
        failure: Exception | SystemExit | None = None
        try:
            action()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other ranks must hear of it; raised again below
            failure = error
        cause = "another rank failed, and says why" if failure is None else self._explain(failure, staging)
        if self._agree(failure is None):
            return
        if self.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise CheckpointError(
            f"could not {what} the checkpoint {staging.name.removeprefix('.tmp-')} in {self.folder}: {cause}."
            " Earlier checkpoints are untouched."
        ) from failure

    def _explain(self, failure: Exception | SystemExit, staging: Path) -> str:
        said = str(failure) if isinstance(failure, CheckpointError) else f"{type(failure).__name__}: {failure}"
        said = said.rstrip(".")
        if not is_full(failure):
            return said
        try:
            written, free = sum(sizes(staging).values()), free_bytes(self.folder)
            wanted = self._last_size()
        except (OSError, CheckpointError):
            return said
        needed = f", about {amount(wanted)} are needed (as for the last one)" if wanted else ""
        return (
            f"{said}: {amount(written)} were written{needed}, {amount(free)} are free there. Free some space, raise the"
            " limit or quota, or lower --checkpoint.keep-last"
        )

    def _prepare(self, staging: Path) -> None:
        if self.rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        sync(self.folder.parent)
        self._clear_debris()
        wanted, free = self._last_size(), free_bytes(self.folder)
        if free < wanted:  # a new one stands beside the old ones until it is committed
            raise CheckpointError(
                f"it needs about {amount(wanted)}, as the last one did, and {amount(free)} are free there; free some"
                " space, or lower --checkpoint.keep-last"
            )
        (staging / "model").mkdir(parents=True)
        (staging / "state").mkdir()

    def _clear_debris(self) -> None:
        """Remove what saves that were killed left behind; undo a replacement that stopped half-way."""
        for path in list(self.folder.iterdir()):
            match = _DEBRIS.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_dir():
                continue
            if match[1] == "replaced-" and not (self.folder / match[2]).exists():
                path.rename(self.folder / match[2])
            else:
                shutil.rmtree(path)

    def _write(self, staging: Path, write: Callable[[Path], Iterable[Path]]) -> None:
        """Every rank syncs and hashes what it wrote, and leaves the entries for the manifest."""
        write_json(staging / f"{_ENTRIES}{self.rank:04d}.json", describe(staging, write(staging)))

    def _commit(self, staging: Path, final: Path, step: int, manifest: Mapping[str, Any]) -> None:
        if self.rank != 0:
            return
        number = 1 + max((found.save_number for found in self.checkpoints()), default=0)
        described: dict[str, Any] = {}
        for entries in sorted(staging.glob(f"{_ENTRIES}*.json")):
            described |= read_json(entries)
            entries.unlink()
        write_manifest(staging, manifest, step=step, save_number=number, described=described)
        self._install(staging, final)
        self.point(final)

    def point(self, checkpoint: Path) -> None:
        """Let ``latest`` name this checkpoint of ours, on rank 0; where it is none, or gone, a warning says so, and ``latest`` stays."""
        if self.rank == 0 and not (why := why_not_ours(checkpoint)):
            replace_text(self.folder / LATEST, checkpoint.name + "\n")
        elif self.rank == 0:
            self._say(f"warning: {checkpoint} cannot be the run's last checkpoint ({why}); {LATEST} stays as it is")

    def _install(self, staging: Path, final: Path) -> None:
        """Give the finished folder its name. A checkpoint of ours there steps aside, anything else is set aside."""
        aside = self.folder / f".tmp-replaced-{final.name}"
        if os.path.lexists(final) and not is_ours(final):
            foreign = next(p for n in range(1, 10**6) if not os.path.lexists(p := final.with_name(f"{final.name}.{n}")))
            final.rename(foreign)
            self._say(f"warning: {final} was no checkpoint of ours and stood in the way; it is now {foreign.name}")
        replaces = os.path.lexists(final)
        if replaces:
            final.rename(aside)
        try:
            staging.rename(final)
        except OSError:
            if replaces:
                aside.rename(final)
            raise
        sync(self.folder)
        if replaces:
            shutil.rmtree(aside, ignore_errors=True)

    def superfluous_checkpoints(self, keep: Retention) -> list[SavedCheckpoint]:
        """Whole checkpoints of ours beyond those to keep."""
        whole = [found for found in self.checkpoints() if is_whole(found.path)]
        best = keep.rank_by_figure(whole)[: keep.best]
        return [found for found in whole[: -keep.last] if found not in best and found.path.name != keep.latest]

    def prune(self, keep: Retention) -> None:
        """Remove what is superfluous. What cannot be removed never stops a run."""
        for found in self.superfluous_checkpoints(keep):
            gone = self.folder / f".tmp-gone-{found.path.name.removeprefix('.tmp-replaced-')}"
            try:
                found.path.rename(gone)  # at once, so that a crash leaves no half checkpoint under a good name
                shutil.rmtree(gone)
            except OSError as error:
                self._say(f"warning: the old checkpoint {found.path} could not be removed: {error}")

    # ------------------------------------------------------------------------------------------------------- finding

    def list(self) -> list[tuple[int, Path]]:
        """(step, folder) of every checkpoint with a valid manifest of ours, in the order in which they were saved."""
        return [(found.step, found.path) for found in self.checkpoints()]

    def checkpoints(self) -> tuple[SavedCheckpoint, ...]:
        """Every checkpoint with a valid manifest of ours, in the order of the saves."""
        if not self.folder.is_dir():
            return ()
        steps = {match[0] for path in self.folder.iterdir() if (match := re.search(r"step-[0-9]{8}$", path.name))}
        found = []
        for path in map(self._place, sorted(steps)):
            if is_ours(path):
                manifest = read_manifest(path)
                size = sum(entry["size"] for entry in manifest["files"].values())
                figures = manifest.get("evaluation", {})
                found.append(SavedCheckpoint(manifest["save_number"], manifest["step"], path, size, figures))
        return tuple(sorted(found))

    def best(self, by: str) -> Path | None:
        """The checkpoint with the best figure (``eval_loss:min``); ``None`` when none has it."""
        ranked = Retention(last=1, by=by).rank_by_figure(self.checkpoints())
        return ranked[0].path if ranked else None

    def _last_size(self) -> int:
        """Bytes of the newest checkpoint: the best guess for the next."""
        return next((found.size for found in reversed(self.checkpoints())), 0)

    def _place(self, name: str) -> Path:
        """Return where a step's checkpoint is: aside, when a crash came in the middle of replacing it."""
        path, aside = self.folder / name, self.folder / f".tmp-replaced-{name}"
        return aside if aside.is_dir() and not os.path.lexists(path) else path

    def latest(self) -> Path | None:
        """The last checkpoint: what ``latest`` names, or without that file the newest save; ``None`` without any.

        Raises ``CheckpointError`` when ``latest`` names something that is not there; its text is never followed.
        """
        pointer = self.folder / LATEST
        refuse_special(pointer)
        if not pointer.exists():
            return next((found.path for found in reversed(self.checkpoints())), None)
        with pointer.open("rb") as file:
            name = file.read(64).decode("utf-8", errors="replace").strip()
        path = self._place(name) if STEP_FOLDER.fullmatch(name) else None
        why = why_not_ours(path) if path else "a step's folder is named step- and eight digits"
        if path is None or why:
            raise CheckpointError(f"{pointer} names {name!r}, which is no checkpoint here: {why}. {others(pointer)}")
        return path


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run was here and saved something: what ``--resume auto`` asks."""
    checkpoints = folder / FOLDER
    traces = (LATEST, f"step-*/{MANIFEST}", f".tmp-replaced-step-*/{MANIFEST}")
    return any(path for trace in traces for path in checkpoints.glob(trace))


def find(path: Path) -> Path:
    """The checkpoint that a path means: a checkpoint folder, or a run's last one.

    Raises ``CheckpointError`` that says what was looked for; a missing checkpoint is never a fresh start.
    """
    try:
        if (path / MANIFEST).is_file():
            above = path.parts[-2:]  # its run is two folders above, and a path from inside that may not name them
            return path if len(above) == 2 and ".." not in above else Path(os.path.abspath(path))
        latest = CheckpointStore(path).latest() if path.is_dir() else None
    except OSError as error:
        raise CheckpointError(f"{path.absolute()} cannot be read: {error.strerror}; check its permissions") from error
    if latest is None:
        raise no_checkpoint_error(path, "give a run's folder or one of its checkpoints")
    return latest


def no_checkpoint_error(path: Path, fix: str) -> CheckpointError:
    """Return the error that a path has no checkpoint; where nothing is there, it names the run beside it that is spelled most alike."""
    if path.is_dir():
        if (path / "config.json").is_file():
            fix += ". It is a folder of weights: a command that runs a model takes it as --weights, mt-train as --model.weights"
        return CheckpointError(f"{path.absolute()} holds no checkpoint (no {MANIFEST} and no {FOLDER}/step-…); {fix}")
    try:
        runs = [each.name for each in path.absolute().parent.iterdir() if has_checkpoint(each)]
    except OSError:  # no folder, or none that may be read: there is nothing to suggest
        runs = []
    return CheckpointError(f"{path.absolute()} does not exist; {fix}. {did_you_mean(path.name, runs)}".rstrip(" ."))
