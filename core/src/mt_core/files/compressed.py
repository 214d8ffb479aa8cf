"""Compressed files: decompressed once into the folder for temporary files (TMPDIR), where rows can be found by offset.

The copy goes when the process ends, or is killed (``scratch.py``). ``.gz`` is RFC 1952, ``.zst`` RFC 8878.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mt_core.errors import DataError, first_line
from mt_core.files.paths import COMPRESSED
from mt_core.files.scratch import scratch_file

_PIECE = 1 << 20
_PIECE_ZSTD = 1 << 14
"""Bytes to decompress at once; a block of a few bytes may stand for 128 KiB."""

_SHORTER = "it is shorter than it was"


def pieces_of(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the content of a file from byte ``start`` on, in pieces, decompressed as it is read.

    Raises ``DataError`` as ``decompressed_path`` does, and where there are fewer bytes.
    """
    kind = _kind(path)
    with _damage_named(path):
        yield from _decompress(path, start) if kind is None else _behind(_KINDS[kind][1](path), start)


def decompressed_path(path: Path) -> Path:
    """Return the file itself, or its decompressed copy. Raises ``DataError`` if it is truncated, damaged or not what its name says."""
    kind = _kind(path)
    return path if kind is None else _copy(path, _KINDS[kind][1])


def _kind(path: Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(10)
    if unread := next((name for magic, name in _UNREAD.items() if head.startswith(magic)), None):
        raise DataError(f"{path.absolute()} is packed by {unread}, which is not read. Unpack it, or use gzip or zstd.")
    kind = next((kind for kind, (magic, _) in _KINDS.items() if head.startswith(magic)), None)
    if kind is None and path.suffix.lower() in COMPRESSED and head:
        raise DataError(f"{path.absolute()} is not compressed, though its name says so. Rename it, or write it anew.")
    return kind


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path.absolute()} is cut off or damaged ({first_line(error)}). Fetch or write it anew; `gzip -t` and `zstd -t` test a file."
        ) from error


def _copy(path: Path, pieces: Callable[[Path], Iterator[bytes]]) -> Path:
    copy = None
    try:
        copy = scratch_file(path.stem)
        with _damage_named(path), copy.open("wb") as file:
            file.writelines(pieces(path))
    except (DataError, OSError) as error:
        if copy is not None:
            copy.unlink()
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path.absolute()} cannot be decompressed into {tempfile.gettempdir()}: {error.strerror or error}. Make room there, set"
            " TMPDIR to another folder, or decompress the file yourself."
        ) from error
    return copy


def _decompress(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        if start > file.seek(0, os.SEEK_END):
            raise EOFError(_SHORTER)
        file.seek(start)
        while piece := file.read(_PIECE):
            yield piece


def _behind(pieces: Iterator[bytes], start: int) -> Iterator[bytes]:
    for piece in pieces:
        if start < len(piece):
            yield piece[start:]
        start = max(0, start - len(piece))
    if start:
        raise EOFError(_SHORTER)


def _gzip(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _zstd(path: Path) -> Iterator[bytes]:
    """All frames. The package's own reader takes a file that is cut off for one that ends."""
    try:
        import zstandard
    except ImportError as error:
        raise DataError(f"{path.absolute()} is .zst, which needs a package: pip install 'mt-core[zstd]'") from error
    frame = None
    with path.open("rb") as file:
        while piece := file.read(_PIECE_ZSTD):
            while piece:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(piece)
                except zstandard.ZstdError as error:
                    raise zlib.error(str(error)) from error
                piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the last frame does not end")


_KINDS: dict[str, tuple[bytes, Callable[[Path], Iterator[bytes]]]] = {
    "gzip": (b"\x1f\x8b", _gzip),
    "zstd": (b"\x28\xb5\x2f\xfd", _zstd),
}
"""How a file begins, and how it is read. Neither can begin a text in UTF-8."""
_UNREAD = {b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
