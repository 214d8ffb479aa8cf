"""What the tokens of a run follow from: the key of the token cache. Nothing that the run does with them is in it."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from mt_core.assemble.resume import tokenizer_digest
from mt_core.checkpoint.files import replace_text, sha256
from mt_core.components import DatasetComponent
from mt_core.config.base import MtConfig
from mt_core.config.run import RunConfig
from mt_core.data.encoding import Rules
from mt_core.errors import DataError
from mt_core.plugins.resolve import Resolved
from mt_core.protocols import Tokenizer

AUTO_BYTES = 50_000_000
"""Files of fewer bytes are encoded in memory each time (``data.cache: auto``): that takes seconds."""

BESIDE_TOKENS = frozenset(
    {"batching", "shuffle", "shuffle_buffer", "group_by_length", "prove", "cache", "workers", "strict"}
)
"""Keys of the ``data`` section that change no token."""

_SETTLED_SECONDS = 2.0
"""A file that changed later than so long ago may change again within the resolution of its time, so its hash is not remembered."""

_CODE = (".py", ".jinja")

_SPLITS: tuple[Literal["train", "eval"], ...] = ("train", "eval")


Files = Mapping[str, Sequence[Path] | None]
"""Those of each split, and of ``data.eval`` where it is a path."""


def source_files(resolved: Resolved) -> Files | None:
    """The files that rows come from; ``None`` when the dataset does not say."""
    component, config = resolved.offers["dataset"].component, resolved.config
    if not isinstance(component, DatasetComponent):
        return None
    files: Files = {split: component.files(config.dataset.options, split) for split in _SPLITS}
    if not isinstance(config.data.eval, str):
        return files
    with naming_eval(config):
        return {**files, "data.eval": component.files(evaluation_options(config), "train")}


def evaluation_options(config: RunConfig) -> MtConfig:
    """The dataset's options where ``data.eval`` is a path: those of the run with this path."""
    given = config.dataset.options
    return type(given)(**{**given.model_dump(exclude_unset=True), "path": config.data.eval})


@contextmanager
def naming_eval(config: RunConfig) -> Iterator[None]:
    """A ``DataError`` of its rows names ``data.eval``."""
    try:
        yield
    except DataError as error:
        raise DataError(f"data.eval={config.data.eval}: {error}") from error


def sizes(files: Files) -> dict[Path, os.stat_result]:
    """What the file system says of each file."""
    return {path: path.stat() for paths in files.values() for path in paths or ()}


def identity(resolved: Resolved, tokenizer: Tokenizer, rules: Rules, files: Files, memory: Path) -> dict[str, Any]:
    """Everything that the encoded rows follow from. ``memory`` is a folder that remembers the hashes of files."""
    config, kinds = resolved.config, ("dataset", "tokenizer", "objective")
    slots = {kind: getattr(config, kind) for kind in kinds}
    read = [path for slot in slots.values() if slot is not config.dataset for path in _files_named(slot.options)]
    return {
        "rows": {split: paths and _hashes(paths, memory) for split, paths in files.items()},
        "rules": {**asdict(rules), "stop_ids": sorted(rules.stop_ids)},
        "components": {kind: slot.as_raw() for kind, slot in slots.items()},
        "code": {kind: _code_of(resolved.offers[kind].component.build) for kind in kinds}
        | {"core": _code(__package__)},
        "read": _hashes(read, memory),
        "tokenizer": [tokenizer_digest(tokenizer), tokenizer.chat_template],
        "data": config.data.model_dump(mode="json", exclude=set(BESIDE_TOKENS)),
    }


def key_of(told: Mapping[str, Any], split: str) -> str:
    """The name of the folder for one split (train, held_out, every)."""
    return hashlib.sha256(json.dumps({**told, "split": split}, sort_keys=True).encode()).hexdigest()[:40]


def _files_named(options: MtConfig) -> Iterator[Path]:
    """What a tokenizer was read from: files that options name, with those beside them that begin with their name, and all of folders."""
    for value in options.model_dump(mode="json").values():
        path = Path(value).expanduser() if isinstance(value, str) and value else None
        if path is not None and path.exists():
            near = path.rglob("*") if path.is_dir() else path.parent.glob(f"{glob.escape(path.stem)}*")
            yield from sorted(child for child in near if child.is_file())


def _hashes(paths: Iterable[Path], memory: Path) -> list[tuple[str, str]]:
    return [(str(path), file_hash(path, memory)) for path in paths]


def file_hash(path: Path, memory: Path) -> str:
    """SHA-256 of a file, read again only when its path, size, time of change or inode are others than they were.

    As git does, this trusts the file system to tell that a file changed.
    """
    about = _about(path)
    known = memory / hashlib.sha256(repr(about).encode()).hexdigest()[:40]
    if known.is_file() and len(text := known.read_text(encoding="utf-8").strip()) == 64:
        return text
    digest = sha256(path)
    if time.time() - path.stat().st_mtime > _SETTLED_SECONDS and _about(path) == about:
        memory.mkdir(parents=True, exist_ok=True)
        replace_text(known, digest + "\n")
    return digest


def _about(path: Path) -> tuple[str | int, ...]:
    now = path.stat()
    return str(path.absolute()), now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev


def _code_of(build: Any) -> str:
    return _code(getattr(getattr(build, "func", build), "__module__", "") or "")  # func: of a partial


def _code(module: str) -> str:
    """SHA-256 of a top-level package, its templates too: a version that holds while somebody works on it."""
    top = sys.modules.get(module.partition(".")[0])
    places = [Path(place) for place in getattr(top, "__path__", [])]
    found = sorted(path for place in places for path in place.rglob("*") if path.suffix in _CODE)
    alone = getattr(top, "__file__", None)
    digest = hashlib.sha256()
    for path in found or ([Path(alone)] if alone else []):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
