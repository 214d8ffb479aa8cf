"""Members of archives that rows name (``images.zip::cat.png``): read where they lie, never unpacked.

An archive is a ``.zip`` or an uncompressed ``.tar`` below a root of the run. Its list of members is read once in a process.
"""

from __future__ import annotations

import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from mt_core.errors import show_value
from mt_train.data.media.roots import refuse_size, resolve_file
from mt_train.data.media.rules import ARCHIVE, MISSING, MediaError, MediaRules

_SEPARATOR = "::"
_SUFFIXES = (".zip", ".tar")
_MOST_RATIO = 200
"""Bytes of a member for one of the archive: a picture that is stored has 1, a bomb a thousand."""

_FREE = 64 * 1024
"""Bytes that a member may have at any ratio: a plain picture of that size is harmless."""

_ENCRYPTED = 0x1
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (
    *(OSError, EOFError, ValueError, OverflowError, RuntimeError, struct.error, zlib.error),
    *(zipfile.BadZipFile, tarfile.TarError),
)
"""Errors of the readers of archives for one that is broken: names in no encoding, places beyond its end, other versions."""


class _Member(NamedTuple):
    """A regular file of a tar: where its bytes are."""

    start: int
    size: int


def is_member(name: str) -> bool:
    """Return whether a row names a member of an archive."""
    archive, separator, _ = name.partition(_SEPARATOR)
    return bool(separator) and archive.lower().endswith(_SUFFIXES)


def archive_of(name: str, rules: MediaRules, place: str) -> str:
    """Return the real path of the archive of ``ARCHIVE::MEMBER``; an empty text for a name that is none. Raises ``MediaError``."""
    return resolve_file(name.partition(_SEPARATOR)[0], rules, place)[0] if is_member(name) else ""


def read_member(name: str, rules: MediaRules, place: str) -> bytes:
    """Return the content of ``ARCHIVE::MEMBER``. Raises ``MediaError``."""
    _, _, member = name.partition(_SEPARATOR)
    if _SEPARATOR in member or member.lower().endswith(_SUFFIXES):
        raise MediaError(
            f"{place} names {show_value(name, 80)}; it is FILE.zip::MEMBER or FILE.tar::MEMBER, and no archive in an archive is read."
            " Unpack what is nested.",
            ARCHIVE,
        )
    path = archive_of(name, rules, place)
    read = _read_zip if path.lower().endswith(".zip") else _read_tar
    try:
        stat = os.stat(path)
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return read(path, version, member, rules, place)
    except KeyError as error:
        raise MediaError(
            f"{place} names {show_value(name, 80)}; the archive has no such file. Repair the name.", MISSING
        ) from error
    except _BROKEN as error:
        raise MediaError(
            f"{place} names {show_value(name, 80)}, which cannot be read: {error}. Write the archive anew, or drop the row.",
            ARCHIVE,
        ) from error


def _read_zip(path: str, version: tuple[int, ...], member: str, rules: MediaRules, place: str) -> bytes:
    archive = _open_zip(path, version, os.getpid())
    info = archive.getinfo(member)
    if info.is_dir():
        raise KeyError(member)
    refuse_size(info.file_size, rules, f"{place} names a member that has")
    if info.flag_bits & _ENCRYPTED:
        raise NotImplementedError("it is encrypted")
    if info.compress_type not in _COMPRESSIONS:
        raise NotImplementedError("it is neither stored nor deflated")
    if info.file_size > max(_FREE, _MOST_RATIO * info.compress_size):
        raise MediaError(
            f"{place} names a member of {info.file_size:,} bytes that are {info.compress_size:,} bytes in the archive; at most"
            f" {_MOST_RATIO} times as many are read. Store it with less compression, or drop the row.",
            ARCHIVE,
        )
    with archive.open(info) as file:
        return file.read(info.file_size)


def _read_tar(path: str, version: tuple[int, ...], member: str, rules: MediaRules, place: str) -> bytes:
    members, damage = _members_of_tar(path, version)
    found = members.get(member)
    if found is None:
        raise tarfile.ReadError(damage) if damage else KeyError(member)
    refuse_size(found.size, rules, f"{place} names a member that has")
    with open(path, "rb") as file:
        file.seek(found.start)
        content = file.read(found.size)
    if len(content) < found.size:
        raise EOFError("the archive ends within it")
    return content


@lru_cache(maxsize=8)
def _open_zip(path: str, version: tuple[int, ...], process: int) -> zipfile.ZipFile:
    """Open an archive, once in each process: forked ones would share the place in the file."""
    return zipfile.ZipFile(path)


@lru_cache(maxsize=8)
def _members_of_tar(path: str, version: tuple[int, ...]) -> tuple[Mapping[str, _Member], str]:
    """Return the files of a tar, of which the last of a name stands for it, and what is wrong behind them; an empty text for nothing."""
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        members = {
            info.name: _Member(info.offset_data, info.size) for info in archive if info.isreg() and not info.issparse()
        }
        file.seek(archive.offset)
        # tarfile takes a header that is damaged or missing for the end.
        is_whole = file.read(tarfile.BLOCKSIZE).count(0) == tarfile.BLOCKSIZE
        damage = f"it is damaged or cut off at byte {archive.offset:,}, and has no such file before"
    return members, "" if is_whole else damage
