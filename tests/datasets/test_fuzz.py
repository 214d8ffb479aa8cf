"""Damaged files of every format: rows come out, or one ``DataError`` that names the file; nothing else, and no hang.

Each format is damaged in a process of its own, so that a crash of a library is seen as what it is.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from dataset_files import FORMATS, open_dataset

from mt_core import DataError

FILES = 60
FILES_SOAK = 5_000 // len(FORMATS) + 1


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One to eight faults: bytes changed, cut out, doubled, put in, or the file cut off."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        place, size = chance.randrange(len(data) + 1), chance.randint(1, 16)
        kind = chance.randrange(6)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[place : place + size]
        elif kind == 2:
            data[place:place] = data[place : place + size]
        elif kind == 3:
            data[place:place] = chance.choice(
                [b"\0", b'"', b"{", b"]", b",", b"\xff\xfe", b"\\", b"\r", b"[" * 3000, b"NaN"]
            )
        elif kind == 4:
            data[place : place + size] = chance.randbytes(size)
        else:
            del data[place:]
    return bytes(data)


def damage(form: str, count: int, folder: Path) -> tuple[int, int]:
    """(rows, faults) of ``count`` damaged files. Whatever is neither is raised."""
    name, file, content, options = FORMATS[form]
    chance, whole, path = random.Random(form), content(), folder / file
    rows = faults = 0
    for number in range(count + 1):
        path.unlink(missing_ok=True)  # not into a file that is still mapped
        path.write_bytes(damaged(whole, chance) if number else whole)
        try:
            dataset = open_dataset(name, path=path, **options)
            count_of_rows = len(dataset)
        except DataError as error:
            faults += told(error, path)
            continue
        for index in range(count_of_rows):
            try:
                row = dataset.row(index)
            except DataError as error:
                faults += told(error, path)
            else:
                assert str(row["id"]).startswith(f"{path}:")
                rows += 1
    return rows, faults


def told(error: DataError, path: Path) -> int:
    assert path.name in str(error), error
    assert len(str(error)) < 1200, error
    return 1


def run(form: str, count: int, folder: Path, timeout: float) -> None:
    words = [sys.executable, __file__, form, str(count), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-3000:]}"
    rows, faults = map(int, done.stdout.split())
    assert rows, "no row ever came out"
    assert faults, "no fault was ever seen"


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_file_gives_rows_or_a_data_error(form: str, tmp_path: Path) -> None:
    run(form, FILES, tmp_path, timeout=60)


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMATS)
def test_thousands_of_damaged_files_give_rows_or_a_data_error(form: str, tmp_path: Path) -> None:
    run(form, FILES_SOAK, tmp_path, timeout=280)


if __name__ == "__main__":
    print(*damage(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
