"""Plain text files: what a document is, and the faults of files and folders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_plugin_standard.datasets.text import TextConfig, build_text


def documents(path: Path, split: Any = "file") -> list[tuple[str, str]]:
    dataset: Any = build_text(TextConfig(path=str(path), split=split), split="train")
    rows = [dataset.row(index) for index in range(len(dataset))]
    return [(str(Path(row["id"]).name), row["text"]) for row in rows]


def test_a_file_is_one_document_with_every_character(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes("one\r\n\n\ttwö \n".encode())
    assert documents(file) == [("a.md:1", "one\r\n\n\ttwö \n")]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfone\n\ntwo")
    assert documents(file) == [("a.txt:1", "one\n\ntwo")]
    assert documents(file, "lines") == [("a.txt:1", "one"), ("a.txt:3", "two")]


def test_paragraphs_lie_between_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n\none\ntwo\n \t\n\nthree\n\nfour")
    assert documents(file, "paragraphs") == [("a.txt:3", "one\ntwo"), ("a.txt:7", "three"), ("a.txt:9", "four")]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200))
@settings(max_examples=100, deadline=None)
def test_lines_and_paragraphs_lose_no_word(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("any") / "a.txt"
    file.write_bytes(b"start\n" + text.encode())
    for split in ("lines", "paragraphs"):
        content = "".join(text for _, text in documents(file, split))
        ascii_blank = str.maketrans("", "", " \t\n\r\x0b\x0c")
        assert content.translate(ascii_blank) == ("start" + text).translate(ascii_blank)


def test_a_folder_is_all_its_text_files_sorted(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("z.txt", "b/c/a.txt", "b/B.TXT", "b/notes.md"):
        (tmp_path / name).write_text(name)
    assert [text for _, text in documents(tmp_path)] == ["b/B.TXT", "b/c/a.txt", "z.txt"]


def test_a_relative_path_starts_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert documents(Path("a.txt")) == [("a.txt:1", "here")]


def fifo(path: Path) -> None:
    os.mkfifo(path)


FAULTS: dict[str, tuple[Any, str]] = {
    "missing": (
        lambda path: None,
        r"/x\.txt does not exist\. Name a file or folder that does; a relative path starts at /",
    ),
    "empty": (lambda path: path.write_text(""), r"/x\.txt has no text"),
    "only a byte order mark": (lambda path: path.write_bytes(b"\xef\xbb\xbf"), r"/x\.txt has no text"),
    "latin-1": (
        lambda path: path.write_bytes(b"ok\nol\xe9 x"),
        r"x\.txt:2: byte 0xe9 at offset 5 is not UTF-8 .*iconv",
    ),
    "cut off in a character": (
        lambda path: path.write_bytes(b"ok\n\n\xe2\x82"),
        r"x\.txt:3: byte 0xe2 at offset 4 is not UTF-8",
    ),
    "latin-1 after a mark": (
        lambda path: path.write_bytes(b"\xef\xbb\xbf\xe9"),
        r"x\.txt:1: byte 0xe9 at offset 3 is not",
    ),
    "utf-16": (
        lambda path: path.write_text("hello", encoding="utf-16"),
        r"x\.txt is UTF-16, not UTF-8\. Convert it: iconv",
    ),
    "binary": (lambda path: path.write_bytes(b"a\nb\0c"), r"x\.txt:2: NUL byte at offset 3"),
    "folder without text": (lambda path: (path.mkdir(), (path / "a.md").touch()), r"has no \*\.txt file, only \.md\."),
    "empty folder": (lambda path: path.mkdir(), r"has no \*\.txt file, only nothing\."),
    "folder of empty files": (
        lambda path: (path.mkdir(), (path / "a.txt").touch(), (path / "b.txt").touch()),
        r"x\.txt/a\.txt has no text, nor have the other 1 files",
    ),
    "broken link": (
        lambda path: (path.mkdir(), (path / "a.txt").symlink_to("b")),
        r"a\.txt is a broken link or no regular file",
    ),
    "pipe": (fifo, r"x\.txt is a broken link or no regular file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_source_is_named_with_what_to_do(fault: str, tmp_path: Path) -> None:
    make, message = FAULTS[fault]
    make(tmp_path / "x.txt")
    with pytest.raises(DataError, match=message):
        documents(tmp_path / "x.txt")


def test_a_folder_that_cannot_be_listed_is_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        documents(tmp_path)


def test_a_file_that_changes_during_the_run_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text")
    dataset: Any = build_text(TextConfig(path=str(file)), split="train")
    file.write_text("some")
    with pytest.raises(DataError, match="became shorter"):
        dataset.row(0)
    file.unlink()
    with pytest.raises(DataError, match="cannot be read any more: No such file"):
        dataset.row(0)


def test_a_dataset_travels_to_another_process(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo")
    dataset: Any = build_text(TextConfig(path=str(file), split="lines"), split="train")
    assert pickle.loads(pickle.dumps(dataset)).row(1) == dataset.row(1)
