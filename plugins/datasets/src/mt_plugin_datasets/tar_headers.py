"""Members of a tar archive, found by reading its headers alone: POSIX ustar and pax, and GNU's long names.

Python's ``tarfile`` takes a damaged header, or a file that was cut off between two members, for the end of the archive; here both are
errors (https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06). Nothing is unpacked: a name leads nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mt_core import DataError

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MOST_EXTENDED = 1 << 20
"""Bytes of an extended header: a name and a few facts."""

_PIECE = 1 << 16
_REGULAR = frozenset("\0" + "07")
_NO_CONTENT = {"1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device", "6": "a pipe"}
_FOLDER, _SPARSE, _LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL = "5", "S", "L", "K", "x", "g"
_EXTENDED = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL})


class Member(NamedTuple):
    """A member that is no folder: its name, and where its content is (bytes). ``kind`` says what it is instead of a regular file."""

    name: str
    start: int
    size: int
    kind: str = ""


class _Header(NamedTuple):
    name: str
    size: int
    type: str


def read_members(file: BinaryIO, path: Path) -> Iterator[Member]:
    """Yield the members in order. Raises ``DataError`` with ``path`` for what is no tar, or not a whole one."""
    end = file.seek(0, os.SEEK_END)
    place, given = 0, dict[str, str]()
    while True:
        file.seek(place)
        block = file.read(BLOCK)
        if len(block) < BLOCK:
            raise _cut(path, end)
        if block == _ZEROS:
            return _refuse_more(file, path)
        header = _parse(block, place, path)
        place += BLOCK
        if header.type in _EXTENDED:
            if header.size > min(_MOST_EXTENDED, end - place):
                raise _damaged(path, place - BLOCK, f"an extended header of {header.size:,} bytes")
            given |= _extended(header.type, file.read(header.size), place, path)
            place += _padded(header.size)
            continue
        name = given.get("GNU.sparse.name", given.get("path", header.name))
        is_folder = header.type == _FOLDER or (header.type in _REGULAR and name.endswith("/"))
        size = 0 if is_folder or header.type in _NO_CONTENT else _size(given, header, place, path)
        if header.type == _SPARSE:
            place += _sparse_map(file, block)
        if place + size > end:
            raise _cut(path, end, name)
        if not is_folder:
            yield Member(name, place, size, _kind(header.type, given))
        place, given = place + _padded(size), {}


def _parse(block: bytes, place: int, path: Path) -> _Header:
    """Read a header. Raises ``DataError`` where its checksum is not that of its bytes."""
    told = _number(block[148:156])
    # The checksum counts its own eight bytes as spaces; some old programs added signed bytes.
    plain = sum(block) - sum(block[148:156]) + 8 * 32
    if told != plain and told != plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        if not place:
            raise DataError(f"{path.absolute()} is no tar archive. Name shards that are, uncompressed or .tar.gz")
        raise _damaged(path, place, "no header of a member")
    size = _number(block[124:136])
    if size is None or size < 0:
        raise _damaged(path, place, "a member of no size")
    name, prefix = _text(block[:100]), _text(block[345:500])
    if prefix and block[257:263] == b"ustar\0":
        name = f"{prefix}/{name}"
    return _Header(name, size, chr(block[156]))


def _number(field: bytes) -> int | None:
    """A number in octal digits, or in base 256 where the first bit is set, as GNU writes large ones; ``None`` where it is neither."""
    if field[0] in (0o200, 0o377):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0o377 else 0)
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if digits.isdigit() and max(digits) < ord("8") else None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _extended(kind: str, content: bytes, place: int, path: Path) -> dict[str, str]:
    """Return the facts of an extended header about the next member; none where it is of all members, or the target of a link."""
    if kind == _LONG_NAME:
        return {"path": _text(content)}
    if kind != _PAX:
        return {}
    given = {}
    while content.strip(b"\0"):
        length, _, rest = content.partition(b" ")
        size = int(length) if length.isdigit() and len(length) < 8 else 0
        key, equals, value = content[len(length) + 1 : size].partition(b"=")
        if not rest or not equals or content[size - 1 : size] != b"\n":
            raise _damaged(path, place, "an extended header that is no list of facts")
        given[_text(key)] = value[:-1].decode("utf-8", "backslashreplace")
        content = content[size:]
    return given


def _sparse_map(file: BinaryIO, block: bytes) -> int:
    """Count the bytes of the blocks behind the header of a sparse file that say where its pieces lie, as GNU writes them."""
    size, is_followed = 0, block[482]
    while is_followed and len(more := file.read(BLOCK)) == BLOCK:
        size, is_followed = size + BLOCK, more[504]
    return size


def _size(given: dict[str, str], header: _Header, place: int, path: Path) -> int:
    told = given.get("size")
    if told is None:
        return header.size
    if not (told.isascii() and told.isdigit() and len(told) < 20):
        raise _damaged(path, place, "a member of no size")
    return int(told)


def _kind(type_: str, given: dict[str, str]) -> str:
    if type_ == _SPARSE or any(key.startswith("GNU.sparse") for key in given):
        return "a sparse file"
    return "" if type_ in _REGULAR else _NO_CONTENT.get(type_, f"a member of the type {type_!r}")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _refuse_more(file: BinaryIO, path: Path) -> None:
    """Raise ``DataError`` where more than zeros is behind the end mark: readers of tar would leave it out without a word."""
    place = file.tell()
    while piece := file.read(_PIECE):
        if piece.count(0) != len(piece):
            raise DataError(
                f"{path.absolute()} goes on behind the end of its archive (byte {place:,}): several were put one after another, or it is"
                " damaged. Give each archive a file of its own, or join them with tar --concatenate"
            )
        place += len(piece)


def _cut(path: Path, end: int, name: str = "") -> DataError:
    where = f"within {name[:80]!r}" if name else "without its end mark (zeros)"
    return DataError(
        f"{path.absolute()} is cut off: it ends at byte {end:,} {where}. Fetch or write it anew"
        + ("" if name else "; if all of its members are there, truncate -s +1024 adds the mark")
    )


def _damaged(path: Path, place: int, what: str) -> DataError:
    return DataError(f"{path.absolute()} is damaged: byte {place:,} begins {what}. Fetch or write it anew")
