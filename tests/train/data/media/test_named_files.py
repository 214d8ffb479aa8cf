"""Rows that were left out, or have content out of an archive, are encoded anew once the files that they name are others."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt_core import Sample
from mt_core.errors import DataError
from mt_core.media import Measured
from mt_core.rows import MediaItem, MediaPart, Row
from mt_train.data import chunks
from mt_train.data.cache import TokenCache
from mt_train.data.encoding import Rules
from mt_train.data.media.reader import MediaReader
from mt_train.data.media.rules import MediaRules
from mt_train.data.media.writer import MediaSource
from mt_train.data.samples import EncodedSamples

NAMES = ("a.png", "b.png", "linked.png", "folder", "pictures.zip::c.png", "a.png")


class Bytes:
    """As many features as a file has bytes, but none of one that begins with an x."""

    def measure(self, part: MediaPart) -> Measured:
        content = part.content or Path(part.path).read_bytes()
        if content.startswith(b"x"):
            raise DataError("it is cut off")
        return Measured(len(content), None, content[:8])

    def read(self, item: MediaItem) -> Any:
        raise NotImplementedError

    def dummy(self) -> Any:
        raise NotImplementedError


class Places:
    """An objective whose samples are a token, and the places of the row's picture."""

    def encode(self, row: Row) -> Sample:
        source = MediaSource(name="eye", processor=Bytes(), tokens=lambda features, grid: features)
        span = source.span(row["media"][0], 0)
        return Sample([0] * (span.tokens + 1), [False] * span.tokens + [True], row["id"], media=(span,))


class Rows:
    def __len__(self) -> int:
        return len(NAMES)

    def row(self, index: int) -> Row:
        return {"id": f"rows:{index}", "text": "<image>", "images": [NAMES[index]]}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files, all of which have something: good ones of four bytes."""
    found = tmp_path / "rows"
    found.mkdir()
    for name in ("a.png", "b.png", "linked.png", "folder"):
        (found / name).write_bytes(b"four")
    pack(found, b"four")
    return found


def pack(folder: Path, content: bytes) -> None:
    with zipfile.ZipFile(folder / "pictures.zip", "w") as archive:
        archive.writestr("c.png" if content else "other.png", content or b"four")


def encode(folder: Path, notices: list[str], rules: Rules | None = None) -> EncodedSamples:
    """The samples of the rows, out of the cache or made."""
    media = MediaRules(kinds=frozenset({"image"}), roots=(folder,))
    given = rules or Rules(max_len=10, truncation="drop", on_bad_row="skip")
    cache = TokenCache(folder.parent / "cache", 1, notices.append, lambda: nullcontext(lambda done, total: None))
    return cache.samples(
        "key", lambda: (Rows(), range(len(NAMES))), Places(), replace(given, media=media, reader=MediaReader({}))
    )


def is_gone(folder: Path, name: str) -> Iterator[None]:
    (folder / name).unlink()
    yield
    (folder / name).write_bytes(b"four")


def is_cut_off(folder: Path, name: str) -> Iterator[None]:
    (folder / name).write_bytes(b"xour")
    yield
    later = os.stat(folder / name).st_mtime_ns + 10_000_000
    (folder / name).write_bytes(b"four")
    os.utime(folder / name, ns=(later, later))


def is_too_long(folder: Path, name: str) -> Iterator[None]:
    (folder / name).write_bytes(b"much too long for a row")
    yield
    (folder / name).write_bytes(b"four")


def leads_outside(folder: Path, name: str) -> Iterator[None]:
    (folder.parent / "outside").write_bytes(b"four")
    (folder / name).unlink()
    (folder / name).symlink_to(folder.parent / "outside")
    yield
    (folder / name).unlink()
    (folder / name).symlink_to(folder / "b.png")


def is_a_folder(folder: Path, name: str) -> Iterator[None]:
    (folder / name).unlink()
    (folder / name).mkdir()
    yield
    (folder / name).rmdir()
    (folder / name).write_bytes(b"four")


def is_not_in_the_archive(folder: Path, name: str) -> Iterator[None]:
    pack(folder, b"")
    yield
    pack(folder, b"four")


def is_cut_off_in_the_archive(folder: Path, name: str) -> Iterator[None]:
    pack(folder, b"xour, and more")
    yield
    pack(folder, b"four")


FAULTS: list[tuple[Callable[[Path, str], Iterator[None]], str, int]] = [
    (is_gone, "a.png", 2),
    (is_gone, "pictures.zip", 1),
    (is_cut_off, "b.png", 1),
    (is_too_long, "b.png", 1),
    (leads_outside, "linked.png", 1),
    (is_a_folder, "folder", 1),
    (is_not_in_the_archive, "", 1),
    (is_cut_off_in_the_archive, "", 1),
]


@pytest.mark.parametrize(("fault", "name", "rows"), FAULTS, ids=[f"{each[0].__name__} {each[1]}" for each in FAULTS])
def test_a_row_that_was_left_out_is_there_once_its_file_is_repaired(
    folder: Path, fault: Callable[[Path, str], Iterator[None]], name: str, rows: int
) -> None:
    content = (folder / "pictures.zip").read_bytes()
    notices, repair = list[str](), fault(folder, name)
    next(repair)
    assert len(encode(folder, notices)) == len(encode(folder, notices)) == len(NAMES) - rows
    assert notices == [], "it was opened the second time"
    next(repair, None)
    if name == "pictures.zip":
        (folder / name).write_bytes(content)
    assert len(encode(folder, notices)) == len(NAMES)
    assert len(notices) == 1
    assert "is another than it was" in notices[0]
    assert len(encode(folder, notices)) == len(NAMES)
    assert len(notices) == 1


def test_content_out_of_an_archive_is_that_of_the_archive_that_is_there(folder: Path) -> None:
    assert [span.item.content for span in encode(folder, []).media_of(4)] == [b"four"]
    pack(folder, b"fives")
    assert [span.item.content for span in encode(folder, []).media_of(4)] == [b"fives"]


def test_a_row_that_was_skipped_and_is_whole_now_is_no_error(folder: Path) -> None:
    strict = Rules(max_len=10, truncation="drop")
    (folder / "a.png").unlink()
    encode(folder, [])
    with pytest.raises(DataError, match=r"rows:0: .* no such file"):
        encode(folder, [], strict)
    (folder / "a.png").write_bytes(b"four")
    assert len(encode(folder, [], strict)) == len(NAMES)


def test_a_part_of_a_cache_that_was_not_made_to_its_end_is_looked_at_as_well(folder: Path) -> None:
    (folder / "a.png").unlink()
    few = Rules(max_len=10, truncation="drop", on_bad_row="skip", max_bad_rows=1)
    with pytest.raises(DataError, match=r"2 bad rows exceed"):
        encode(folder, [], few)
    assert list((folder.parent / "cache" / "key.building").glob("chunk-*"))
    (folder / "a.png").write_bytes(b"four")
    assert len(encode(folder, [], few)) == len(NAMES)


def test_rows_whose_files_are_all_there_and_texts_name_none(folder: Path) -> None:
    assert list(encode(folder, []).report.named_files) == [str(folder / "pictures.zip")]
    assert Rules(max_len=10, truncation="drop").media is None
