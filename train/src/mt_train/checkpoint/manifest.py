"""``manifest.json``: what a checkpoint consists of, down to the SHA-256 of every file.

No format of tensors notices a flipped bit, so the manifest does; its own last line holds the SHA-256 of the lines before.
It is written last: a folder with a valid one is whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from mt_core.errors import CheckpointError
from mt_core.files.writing import sync
from mt_train.checkpoint.fields import is_count, odd_fields, shorten
from mt_train.checkpoint.files import sha256, sizes
from mt_train.checkpoint.tensors import json_text, read_json_text

MANIFEST = "manifest.json"
FORMAT = 1
STEP_FOLDER = re.compile(r"step-([0-9]{8})")
SEAL = "sha256"
RESERVED = frozenset({"format", "step", "save_number", "files", SEAL})
_SHOWN = 5
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SEALED = re.compile(rf'(.*),\n "{SEAL}": "({_DIGEST.pattern})"\n\}}\n', re.DOTALL)


def describe(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Sync and hash some files of a folder: their entries in its manifest."""
    entries = {}
    for path in files:
        sync(path)
        entries[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": sha256(path)}
    return entries


def write_manifest(
    folder: Path,
    content: Mapping[str, Any],
    *,
    step: int,
    save_number: int,
    described: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write a folder's manifest, last and synced. Files that are not ``described`` yet are synced and hashed first.

    ``save_number`` counts the saves of a run: the order of checkpoints, whatever clocks and step numbers say.
    """
    if taken := RESERVED & content.keys():
        raise CheckpointError(f"the manifest's keys {sorted(taken)} are the store's own; choose other names")
    present, known = sizes(folder), described or {}
    files = {name: known[name] for name, size in present.items() if name in known and known[name]["size"] == size}
    files |= describe(folder, [folder / name for name in present if name not in files])
    head = {"format": FORMAT, "step": step, "save_number": save_number}
    path = folder / MANIFEST
    text = json_text(path, {**head, **content, "files": dict(sorted(files.items()))})
    path.write_text(_seal(text), encoding="utf-8")
    sync(folder / MANIFEST)
    inner = {folder / parent for name in files for parent in PurePosixPath(name).parents}
    for parent in sorted(inner | {folder}, reverse=True):
        sync(parent)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises ``CheckpointError`` when it is missing, damaged or not ours."""
    path = folder / MANIFEST
    text, manifest = read_json_text(path)
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise CheckpointError(f"{path} is no manifest of a checkpoint; give a folder that mt-train wrote")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"{folder} has format {manifest['format']!r}, and this version reads {FORMAT}; use the mt-core that wrote it"
        )
    if fault := next(chain(_seal_faults(text, manifest), _faults_of(manifest)), None):
        raise CheckpointError(f"{path} is damaged: {fault}; use another checkpoint")
    named = STEP_FOLDER.fullmatch(folder.name)
    if named and int(named[1]) != manifest["step"]:
        raise CheckpointError(
            f"{path} is of step {manifest['step']}, which its folder's name denies; give the folder its name back"
        )
    return manifest


def _seal(text: str) -> str:
    """The text of a JSON object with a last key more: the hash of all the rest."""
    body = text.removesuffix("\n}\n")
    return f'{body},\n "{SEAL}": "{_digest(body)}"\n}}\n'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _seal_faults(text: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A manifest of an earlier version has no seal; it ends with its files."""
    match = _SEALED.fullmatch(text)
    if match is not None and _digest(match[1]) != match[2]:
        yield "its content is not what its last line says"
    elif match is None and (SEAL in manifest or list(manifest)[-1] != "files"):
        yield "its last line is not the SHA-256 of the others"


def _faults_of(manifest: Mapping[str, Any]) -> Iterator[str]:
    for key in ("step", "save_number"):
        if not is_count(manifest.get(key)):
            yield f"{key} is {shorten(manifest.get(key))} instead of a count"
    yield from odd_fields(manifest)
    files = manifest.get("files")
    if not isinstance(files, dict):
        yield "it lists no files"
        return
    for name, entry in files.items():
        if not isinstance(entry, dict) or entry.keys() != {"size", "sha256"} or type(entry["size"]) is not int:
            yield f"the entry of {name!r} is not its size and SHA-256"
        elif not isinstance(entry["sha256"], str) or not _DIGEST.fullmatch(entry["sha256"]):
            yield f"the SHA-256 of {name!r} is not 64 hexadecimal digits"


def verify(folder: Path, *, share: tuple[int, int] = (0, 1)) -> dict[str, Any]:
    """Check presence, size and SHA-256 of every file of a checkpoint; returns its manifest.

    ``share`` (number, of how many): the content of these files only, where several processes divide the work.

    Raises ``CheckpointError`` that names each file that differs, with what it should be, and the checkpoints beside it.
    """
    manifest = read_manifest(folder)
    try:
        faults = list(misfits(folder, manifest["files"], share=share))
    except OSError as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}. {others(folder)}") from error
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise CheckpointError(
            f"the checkpoint {folder} cannot be trusted: {'; '.join(faults[:_SHOWN] + more)}. {others(folder)}"
        )
    return manifest


def misfits(
    folder: Path, files: Mapping[str, Mapping[str, Any]], *, share: tuple[int, int] | None = None
) -> Iterator[str]:
    """Yield the faults of a checkpoint's files: names and sizes, and every byte of a ``share`` of them.

    Only files that a walk of the folder finds are opened, so no name in a manifest leads out of it.
    """
    try:
        present = sizes(folder)
    except CheckpointError as error:
        yield str(error)
        return
    for name in sorted(present.keys() - files.keys() - {MANIFEST}):
        yield f"{name} is not listed in {MANIFEST}"
    for position, (name, entry) in enumerate(files.items()):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            yield f"{MANIFEST} names {name!r}, which is outside the checkpoint"
        elif name not in present:
            yield f"{name} is missing"
        elif present[name] != entry["size"]:
            yield f"{name} has {present[name]} bytes and should have {entry['size']}"
        elif share and position % share[1] == share[0] and (digest := sha256(folder / name)) != entry["sha256"]:
            yield f"{name} is damaged: its SHA-256 is {digest[:12]}… and should be {entry['sha256'][:12]}…"


def is_ours(path: Path) -> bool:
    """Return whether a valid manifest says that we wrote this folder."""
    return not why_not_ours(path)


def why_not_ours(path: Path) -> str:
    """Return the reason why no valid manifest says so; empty where one does."""
    if path.is_symlink() or not path.is_dir():
        return f"{path.name} is {'a link' if path.is_symlink() else 'not there'}"
    try:
        read_manifest(path)
    except CheckpointError as error:
        return str(error)
    return ""


def is_whole(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of ours with every file in place (content unread)."""
    if folder.is_symlink():
        return False
    try:
        files = read_manifest(folder)["files"]
        return next(misfits(folder, files), None) is None
    except (CheckpointError, OSError):
        return False


def others(folder: Path) -> str:
    """Return which other checkpoints stand beside this one, for an error's last sentence."""
    beside = sorted(path.name for path in folder.parent.glob("step-*") if path != folder and is_whole(path))
    if not beside:
        return f"No other checkpoint in {folder.parent} has all of its files."
    return (
        f"Checkpoints in {folder.parent} with every file in place: {', '.join(beside)}; give the path of one instead."
    )
