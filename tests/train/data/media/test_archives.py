"""Members of archives are read where they lie, within limits, and a broken archive is a bad row."""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from mt_core.rows import MediaPart
from mt_train.data.media.rules import ARCHIVE, LARGE, MISSING, OUTSIDE, URL, MediaError, MediaRules
from mt_train.data.media.values import build_part

MOST = 300_000
PLACE = "rows.jsonl:1: field 'images', number 1"
CAT = bytes(random.Random(0).randbytes(5000))
MEMBERS = {
    "cat.png": CAT,
    "in/dog.png": b"dog",
    "zeros.png": bytes(200_000),
    "large.png": bytes(MOST + 1),
    "empty.png": b"",
}


def write_zip(path: Path, compression: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content)
        archive.mkdir("folder")


def write_tar(path: Path, mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in MEMBERS.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind in (("folder", tarfile.DIRTYPE), ("pipe", tarfile.FIFOTYPE), ("link.png", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("top")
    folder = top / "rows"
    folder.mkdir()
    write_zip(folder / "a.zip")
    write_zip(folder / "stored.ZIP", zipfile.ZIP_STORED)
    write_tar(folder / "a.tar")
    write_tar(folder / "gz.tar", "w:gz")
    write_zip(top / "out.zip")
    (folder / "text.zip").write_bytes(b"no archive")
    (folder / "odd::name.png").write_bytes(b"odd")
    return folder


@pytest.fixture
def rules(folder: Path) -> MediaRules:
    return MediaRules(kinds=frozenset({"image"}), roots=(folder,), max_bytes=MOST)


@pytest.mark.parametrize("archive", ["a.zip", "stored.ZIP", "a.tar", "{folder}/a.zip", "file://{folder}/a.tar"])
@pytest.mark.parametrize("member", ["cat.png", "in/dog.png"])
def test_members_are_content(folder: Path, rules: MediaRules, archive: str, member: str) -> None:
    name = f"{archive.format(folder=folder)}::{member}"
    before = sorted(folder.rglob("*"))
    assert build_part("image", {"path": name}, rules, PLACE) == MediaPart("image", content=MEMBERS[member])
    assert sorted(folder.rglob("*")) == before


def test_a_file_with_colons_in_its_name_is_a_file(rules: MediaRules) -> None:
    assert build_part("image", "odd::name.png", rules, PLACE).path.endswith("odd::name.png")


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "a.zip::none.png": MISSING,
        "a.zip::folder/": MISSING,
        "a.zip::": MISSING,
        "a.tar::none.png": MISSING,
        "a.tar::folder": MISSING,
        "a.tar::pipe": MISSING,
        "a.tar::link.png": MISSING,
        "a.zip::../../etc/passwd": MISSING,
        "none.zip::cat.png": MISSING,
        "../out.zip::cat.png": OUTSIDE,
        "a.zip::b.zip::cat.png": ARCHIVE,
        "a.zip::b.zip": ARCHIVE,
        "a.tar::b.tar": ARCHIVE,
        "text.zip::cat.png": ARCHIVE,
        "gz.tar::cat.png": ARCHIVE,
        "a.zip::zeros.png": ARCHIVE,
        "a.zip::large.png": LARGE,
        "a.tar::large.png": LARGE,
        "https://example.com/a.zip::cat.png": URL,
        "http://[::1]/cat.png": URL,
    }.items(),
)
def test_everything_else_is_refused(rules: MediaRules, name: str, kind: str) -> None:
    with pytest.raises(MediaError) as caught:
        build_part("image", name, rules, PLACE)
    assert str(caught.value).startswith(PLACE)
    assert caught.value.kind == kind


def test_members_that_are_stored_may_have_any_bytes(rules: MediaRules) -> None:
    assert build_part("image", "stored.ZIP::zeros.png", rules, PLACE).content == bytes(200_000)


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_an_archive_that_changed_is_read_anew(tmp_path: Path, suffix: str) -> None:
    rules = MediaRules(kinds=frozenset({"image"}), roots=(tmp_path,), max_bytes=MOST)
    path = tmp_path / f"a.{suffix}"
    write = write_zip if suffix == "zip" else write_tar
    write(path)
    assert build_part("image", f"{path.name}::cat.png", rules, PLACE).content == CAT
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEMBERS, "cat.png", b"another")
        write(path)
    assert build_part("image", f"{path.name}::cat.png", rules, PLACE).content == b"another"


def test_an_archive_that_is_cut_off_while_it_is_read_is_no_content(tmp_path: Path) -> None:
    """Its list of members was read before, and its stamp is what it was."""
    rules, path = MediaRules(kinds=frozenset({"image"}), roots=(tmp_path,), max_bytes=MOST), tmp_path / "a.tar"
    write_tar(path)
    was = os.stat(path)
    assert build_part("image", "a.tar::cat.png", rules, PLACE).content == CAT
    os.truncate(path, 3000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", lambda *given, **named: was)
        with pytest.raises(MediaError, match="the archive ends within it"):
            build_part("image", "a.tar::cat.png", rules, PLACE)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_behind_the_damage_of_a_tar_is_not_called_missing(is_cut: bool, tmp_path: Path) -> None:
    rules, path = MediaRules(kinds=frozenset({"image"}), roots=(tmp_path,), max_bytes=MOST), tmp_path / "a.tar"
    write_tar(path)
    with tarfile.open(path) as archive:
        place = archive.getmember("large.png").offset
    content = path.read_bytes()
    path.write_bytes(content[:place] + (b"" if is_cut else b"\xff" + content[place + 1 :]))
    assert build_part("image", "a.tar::cat.png", rules, PLACE).content == CAT
    with pytest.raises(MediaError, match=rf"cannot be read: it is damaged or cut off at byte {place:,}") as caught:
        build_part("image", "a.tar::large.png", rules, PLACE)
    assert caught.value.kind == ARCHIVE


def test_an_archive_is_opened_once_in_each_process(rules: MediaRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked processes that went on with one open file would move each other's place in it."""
    opened: list[int] = []
    open_zip = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda *args: opened.append(os.getpid()) or open_zip(*args))
    for process in (-1, -1, -2, -2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        assert build_part("image", "a.zip::cat.png", rules, PLACE).content == CAT
    assert opened == [-1, -2]


def is_refused(name: str, rules: MediaRules) -> bool:
    try:
        part = build_part("image", name, rules, PLACE)
    except MediaError as error:
        return str(error).startswith(PLACE)
    assert len(part.content) <= MOST
    return False


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_a_hundred_mutated_archives_give_content_or_one_error(tmp_path: Path, suffix: str) -> None:
    rules = MediaRules(kinds=frozenset({"image"}), roots=(tmp_path,), max_bytes=MOST)
    whole = tmp_path / f"whole.{suffix}"
    (write_zip if suffix == "zip" else write_tar)(whole)
    content, random_ = whole.read_bytes(), random.Random(7)
    refused = 0
    for number in range(100):
        changed = bytearray(content[: random_.randrange(len(content))] if number % 4 == 0 else content)
        for _ in range(random_.randrange(1, 20)):
            place = random_.randrange(len(changed)) if number % 2 else -1 - random_.randrange(min(len(changed), 600))
            changed[place] = random_.randrange(256)
        (tmp_path / f"{number}.{suffix}").write_bytes(changed)
        for member in MEMBERS:
            refused += is_refused(f"{number}.{suffix}::{member}", rules)
        os.unlink(tmp_path / f"{number}.{suffix}")
    assert refused > 200
