"""Headers of tar archives: the members that Python's ``tarfile`` finds, and every archive that is not whole is named."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_files import shard

from mt_core import DataError
from mt_plugin_datasets.tar_headers import Member, read_members


def found(content: bytes) -> list[Member]:
    return list(read_members(io.BytesIO(content), Path("a.tar")))


LONG = f"{'folder/' * 40}name.txt"
NAMES = {
    "1.txt": b"one",
    "é/2.json": b"{}" * 400,
    "../out.txt": b"x",
    "/etc/x.txt": b"",
    LONG: b"long",
    "ü" * 60 + ".png": b"p",
}


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_finds(kind: int) -> None:
    content = shard(
        NAMES, format=kind, encoding="utf-8", pax_headers={"comment": "x"} if kind == tarfile.PAX_FORMAT else None
    )
    assert [(member.name, content[member.start : member.start + member.size]) for member in found(content)] == list(
        NAMES.items()
    )
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert [(info.name, info.offset_data, info.size) for info in archive] == [each[:3] for each in found(content)]


def test_a_name_in_two_parts_and_a_size_in_base_256_are_read() -> None:
    name = f"{'folder/' * 20}name.txt"
    content = bytearray(shard({name: b"abc"}, format=tarfile.USTAR_FORMAT))
    content[124:136] = b"\x80" + (3).to_bytes(11, "big")
    content[148:156] = b"%06o\0 " % (sum(content[:148]) + 8 * 32 + sum(content[156:512]))
    assert found(bytes(content)) == [Member(name, 512, 3)]


def test_what_is_no_regular_file_is_named_and_folders_are_none() -> None:
    sink = io.BytesIO()
    kinds = {
        tarfile.LNKTYPE: "a hard link",
        tarfile.SYMTYPE: "a symbolic link",
        tarfile.CHRTYPE: "a device",
        tarfile.FIFOTYPE: "a pipe",
        tarfile.DIRTYPE: None,
        b"V": "a member of the type 'V'",
        tarfile.GNUTYPE_SPARSE: "a sparse file",
    }
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for number, kind in enumerate(kinds):
            info = tarfile.TarInfo(f"{number}.txt")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert [member.kind for member in found(sink.getvalue())] == [kind for kind in kinds.values() if kind]


def test_sparse_files_have_their_own_names_and_what_follows_them_is_found() -> None:
    """As GNU tar --sparse writes them: pieces listed in blocks behind the header, or a name that stands in for the file's own."""
    info = tarfile.TarInfo("1.jpg")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 700
    old = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    old[482] = 1
    old[148:156] = b"%06o\0 " % (sum(old[:148]) + 8 * 32 + sum(old[156:512]))
    lists = bytes(504) + b"\1" + bytes(7) + bytes(512)
    standing_in = tarfile.TarInfo("GNUSparseFile.7/2.jpg")
    standing_in.pax_headers = {"GNU.sparse.name": "2.jpg"}
    content = bytes(old) + lists + bytes(1024) + standing_in.tobuf(tarfile.PAX_FORMAT) + shard({"2.txt": b"y"})
    assert [(each.name, each.kind) for each in found(content)] == [
        ("1.jpg", "a sparse file"),
        ("2.jpg", "a sparse file"),
        ("2.txt", ""),
    ]


WHOLE = shard({"1.txt": b"x" * 700, "2.txt": b"y"})


def changed(place: int, value: bytes) -> bytes:
    return WHOLE[:place] + value + WHOLE[place + len(value) :]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty file": (lambda: b"", "is cut off: it ends at byte 0 without its end mark"),
    "another file": (lambda: b"PK\x03\x04" * 300, "is no tar archive"),
    "cut between members": (lambda: WHOLE[:1536], r"ends at byte 1,536 without its end mark .* truncate -s \+1024"),
    "cut within a header": (lambda: WHOLE[:1700], "ends at byte 1,700 without its end mark"),
    "cut within a member": (lambda: WHOLE[:600], r"ends at byte 600 within '1\.txt'"),
    "a damaged header": (lambda: changed(1540, b"\xff"), "byte 1,536 begins no header of a member"),
    "two archives": (lambda: WHOLE + WHOLE, r"goes on behind the end of its archive \(byte 3,072\)|goes on behind"),
    "a long name of a gigabyte": (
        lambda: shard({"x": b""}, format=tarfile.GNU_FORMAT)[:0] + long_name(1 << 30),
        "begins an extended header of 1,073,741,824 bytes",
    ),
    "an extended header of no facts": (
        lambda: extended(b"12 path"),
        "begins an extended header that is no list of facts",
    ),
    "an endless extended header": (lambda: extended(b"0 path=x\n"), "that is no list of facts"),
    "a size of letters": (lambda: extended(b"10 size=x\n"), "begins a member of no size"),
}


def long_name(size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def extended(content: bytes) -> bytes:
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    return info.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0") + WHOLE


@pytest.mark.parametrize("case", BAD)
def test_archives_that_are_not_whole_are_named(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(DataError, match=message):
        found(make())


def test_any_damage_gives_members_within_the_file_or_one_error() -> None:
    chance, refusals = random.Random(0), list[str]()
    whole = shard(NAMES, format=tarfile.PAX_FORMAT)[:8192]
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(content))
            content[place : place + chance.choice([0, 1, 8])] = chance.randbytes(chance.choice([1, 8]))
        try:
            assert all(0 <= each.start <= each.start + each.size <= len(content) for each in found(bytes(content)))
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 300
    assert all(each.startswith(str(Path("a.tar").absolute())) for each in refusals)
