"""Megatron's indexed datasets, as megatron-core 0.16.1 wrote them (``IndexedDatasetBuilder``): ``fixtures/megatron``."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_files import open_dataset, rows_of

from mt_core import DataError
from mt_plugin_datasets import indexed

FIXTURES = Path(__file__).parent / "fixtures/megatron"
DOCUMENTS = [[1, 2, 3, 4], [5, 6, 7, 8, 9], [65000, 10], [11, 12, 13, 14]]
"""What the builder was given, in sequences of 4 · 2 and 3 · 2 · 1, 1 and 2 tokens."""


@pytest.mark.parametrize("name", ["short", "long"])
def test_documents_are_those_that_megatron_wrote(name: str) -> None:
    """As 16 and as 32 bits."""
    path = FIXTURES / f"{name}.idx"
    dataset = open_dataset("megatron", path=path)
    rows = rows_of(dataset)
    assert [row["input_ids"] for row in rows] == DOCUMENTS
    assert [row["id"] for row in rows] == [f"{path}:{number}" for number in (1, 2, 3, 4)]
    assert len(pickle.dumps(dataset)) < 1000
    assert rows_of(pickle.loads(pickle.dumps(dataset))) == rows


def test_several_files_are_read_one_after_another(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        for suffix in ("idx", "bin"):
            shutil.copy(FIXTURES / f"short.{suffix}", tmp_path / f"{name}.{suffix}")
    dataset = open_dataset("megatron", path=tmp_path)
    assert [row["input_ids"] for row in rows_of(dataset)] == DOCUMENTS * 3
    assert dataset.row(8)["id"] == f"{tmp_path / 'c.idx'}:1"


def test_of_a_folder_it_is_not_said_that_its_ids_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for suffix in ("idx", "bin"):
        shutil.copy(FIXTURES / f"short.{suffix}", tmp_path / f"a.{suffix}")
    assert len(open_dataset("megatron", path=tmp_path)) == 4
    assert not caplog.records


def test_a_long_index_is_checked_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed, "_BLOCK", 2)
    assert len(open_dataset("megatron", path=FIXTURES / "short.idx")) == 4


def test_sequences_may_lie_in_another_order_than_their_index(tmp_path: Path) -> None:
    """As where a writer of one's own sorts them by length: two of two tokens change places."""
    shutil.copy(FIXTURES / "short.bin", tmp_path / "a.bin")
    index = bytearray((FIXTURES / "short.idx").read_bytes())
    starts = 34 + 4 * 7
    begins = [0, 8, 12, 26, 22, 24, 18]  # the fourth and the last, of two tokens each
    index[starts : starts + 56] = b"".join(begin.to_bytes(8, "little") for begin in begins)
    (tmp_path / "a.idx").write_bytes(index)
    ids = [each for row in rows_of(open_dataset("megatron", path=tmp_path)) for each in row["input_ids"]]
    assert ids == [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 11, 12, 65000, 10]


def spoiled(place: int, value: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        data = bytearray((folder / "a.idx").read_bytes())
        data[place : place + len(value)] = value
        (folder / "a.idx").write_bytes(data)

    return write


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "another file": (spoiled(0, b"NOTMEGA"), "is no index of Megatron's ids: it begins with b'NOTMEGA"),
    "a later version": (spoiled(9, b"\2"), "version 2, type 8"),
    "fractions": (spoiled(17, b"\7"), "type 7"),
    "an unknown type": (spoiled(17, b"\x63"), "type 99"),
    "a cut index": (cut("a.idx", 100), "has 100 bytes, and 7 sequences with 5 borders of documents need 158"),
    "a cut head": (cut("a.idx", 20), "cannot be read as an index"),
    "an empty index": (cut("a.idx", 0), "cannot be read as an index"),
    "cut ids": (cut("a.bin", 29), "has 29 bytes, and a.idx has 15 ids of 2 bytes"),
    "no ids": (lambda folder: (folder / "a.bin").unlink(), r"a\.bin, of a\.idx, cannot be read: No such file"),
    "falling borders": (spoiled(34 + 84 + 8, b"\x09"), "do not rise from 0 to 7"),
    "a start outside": (spoiled(34 + 28, b"\x1d"), r"do not lie one behind another in a\.bin, from byte 0 on"),
    "a start before": (spoiled(34 + 28, b"\xff" * 8), "do not lie one behind another"),
    "a start in another sequence": (spoiled(34 + 28 + 8, b"\x04"), "do not lie one behind another"),
    "lengths that only add up": (spoiled(34, b"\x05\0\0\0\1"), "do not lie one behind another"),
    "a negative length": (spoiled(34, b"\xff\xff\xff\xff\7"), "do not lie one behind another"),
}


@pytest.mark.parametrize("case", BAD)
def test_files_that_are_not_whole_are_named(case: str, tmp_path: Path) -> None:
    for suffix in ("idx", "bin"):
        shutil.copy(FIXTURES / f"short.{suffix}", tmp_path / f"a.{suffix}")
    change, said = BAD[case]
    change(tmp_path)
    with pytest.raises(DataError, match=said):
        rows_of(open_dataset("megatron", path=tmp_path / "a.idx"))


def test_sequences_of_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="has a mode for each sequence: some are pictures"):
        open_dataset("megatron", path=FIXTURES / "pictures.idx")
