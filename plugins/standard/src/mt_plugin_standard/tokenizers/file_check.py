"""Tokenizers in native code, which read files that anybody may have written.

A fault of theirs may be a panic, which in Python is no ``Exception`` (https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html),
an abort, memory without bounds, or a loop without end: the process that reads such a file can do nothing about the last three. So a
file that was not read here before is tried first by a process of its own with limits (``native_check.py``), on short texts. The cache
remembers by hash what passed, so that a file is tried once. Panics on other texts are caught where the tokenizer is used.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from mt_core import MtError
from mt_core.files import cache_root

Kind = Literal["tokenizer.json", "folder", "sentencepiece"]
"""How the files are read: one ``tokenizer.json``, a folder of a tokenizer without one, or a SentencePiece model."""

MOST_BYTES = 10**9
_LIBRARIES = {
    "tokenizer.json": ("tokenizers",),
    "folder": ("tokenizers", "transformers"),
    "sentencepiece": ("sentencepiece",),
}
_WORKER = Path(__file__).with_name("native_check.py")
_WALL_SECONDS = 300
"""The processor time of a trial ends long before, unless the machine does something else."""
_SINGLE_THREADED = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_EXITS = {
    "SIGXCPU": "reading it, or a few short texts with it, does not come to an end",
    "SIGKILL": "reading it, or a few short texts with it, does not come to an end, or takes too much memory",
}


def check_tokenizer(files: Sequence[Path], kind: Kind, place: Path, *, named: Path | None = None) -> None:
    """Try a tokenizer (``place``: its file or folder; ``named`` in messages) whose ``files`` were not read here before.

    Raises ``MtError`` with the fault where that fails (of a SentencePiece model the reason alone); nothing is remembered then.
    """
    key = _hash(tuple(files), tuple(_stamp(file) for file in files), kind)
    mark = cache_root() / "tokenizers" / key
    if mark.is_file():
        return
    _run_check(kind, place, named or place)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:  # a home that cannot be written: the next run tries again
        return


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    if found.st_size > MOST_BYTES:
        raise MtError(f"{file.absolute()} has {found.st_size / 1e9:.1f} GB, which no tokenizer has; name another file")
    return found.st_size, found.st_mtime_ns


@cache
def _hash(files: tuple[Path, ...], stamps: tuple[tuple[int, int], ...], kind: Kind) -> str:
    """Hash what the files say, and of who reads them; ``stamps`` are of the files as they are now."""
    digest = hashlib.sha256(kind.encode())
    for name in _LIBRARIES[kind]:
        digest.update(f"{name} {_version(name)}\0".encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return digest.hexdigest()


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # here: importing it takes a while

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _run_check(kind: Kind, place: Path, named: Path) -> None:
    command = [sys.executable, "-P", str(_WORKER), kind, str(place)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_SINGLE_THREADED},
            timeout=_WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable_error(named, kind, _EXITS["SIGKILL"]) from error
    if done.returncode:
        raise _unreadable_error(named, kind, _describe_exit(done.returncode, done.stdout))


def _unreadable_error(place: Path, kind: Kind, reason: str) -> MtError:
    if kind == "sentencepiece":
        return MtError(reason)
    return MtError(
        f"{place.absolute()} cannot be read as a Hugging Face tokenizer: {reason}. Fetch or make the file anew"
    )


def _describe_exit(code: int, said: bytes) -> str:
    words = _first(said.decode("utf-8", "replace"))
    if code > 0:
        return words or f"the process that tried it ended with {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return _EXITS.get(name, f"it ends the process that reads it ({name})")


def _first(text: str) -> str:
    return next(iter(text.strip().splitlines()), "it says nothing")[:300]
