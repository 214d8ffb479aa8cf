"""Damaged files of every format, read as a run reads them: rows in = trained + counted, or one ``DataError`` that names the
file; nothing else, and no hang.

They are read in a process of their own, so that a crash of a library is seen as what it is.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from dataset_files import FORMATS, ROWS

from mt_core import DataError
from mt_train.assemble.data import read_data
from mt_train.assemble.discovery import discover_plugins
from mt_train.assemble.parts import Parts
from mt_train.planning.inspection import resolve_rows


def texts() -> bytes:
    return "".join(f"{row['prompt']}\n\n" for row in ROWS).encode()


def questions() -> bytes:
    rows = ({"question": row["prompt"], "answer": row["response"]} for row in ROWS)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


FORMS = {
    **FORMATS,
    "text": ("text", "a.txt", texts, {"split": "paragraphs"}),
    "gsm8k": ("gsm8k", "a.jsonl", questions, {}),
}
FILES = 15
FILES_SOAK = 5_000 // len(FORMS) + 1
SKIPPING = {"eval": None, "on_bad_row": "skip", "max_bad_rows": 10**6, "truncation": "split"}


def damage_bytes(content: bytes, chance: random.Random) -> bytes:
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


def damage(form: str, count: int, folder: Path) -> Counter[str]:
    """What became of ``count`` damaged files, read as a run reads them. Whatever is neither row nor fault is raised."""
    name, file, content, options = FORMS[form]
    chance, whole, path = random.Random(form), content(), folder / file
    objective = "pretrain" if name == "text" else "sft"
    source = {"dataset": {"name": name, "path": str(path), **options}, "objective": objective}
    parts, found = Parts.of(resolve_rows({**source, "data": SKIPPING}, discover_plugins([]))), Counter[str]()
    for number in range(count + 1):
        path.unlink(missing_ok=True)  # not into a file that is still mapped
        path.write_bytes(damage_bytes(whole, chance) if number else whole)
        try:
            report = read_data(parts).train.report
        except DataError as error:
            found["files refused"] += row_number(str(error), path)
            continue
        dropped = report.rows_dropped.total()
        assert report.rows_read == report.rows_kept + dropped, report
        assert len(report.bad_rows) == report.rows_dropped["bad row"], report
        found += {"rows read": report.rows_read, "rows trained": report.rows_kept, "rows counted": dropped}
        found["rows named"] += sum(row_number(message, path) for message in report.bad_rows)
    return found


def row_number(message: str, path: Path) -> int:
    assert path.name in message, message
    assert len(message) < 1200, message
    return 1


def run(forms: list[str], count: int, folder: Path, timeout: float) -> None:
    words = [sys.executable, __file__, str(folder), str(count), *forms]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    seen = {form: Counter(found) for form, found in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, f"exit {done.returncode} after {list(seen)}\n{done.stderr[-3000:]}"
    print(count, "damaged files of each format:", {form: dict(found) for form, found in seen.items()})
    for form in forms:
        assert seen[form]["rows trained"], f"no row of {form} ever came out"
        assert seen[form]["files refused"] + seen[form]["rows named"], f"no fault of {form} was ever seen"


def test_damaged_files_give_rows_that_are_trained_or_counted(tmp_path: Path) -> None:
    run(list(FORMS), FILES, tmp_path, timeout=600)


@pytest.mark.soak
@pytest.mark.parametrize("form", FORMS)
def test_thousands_of_damaged_files_give_rows_that_are_trained_or_counted(form: str, tmp_path: Path) -> None:
    run([form], FILES_SOAK, tmp_path, timeout=1500)


if __name__ == "__main__":
    for form in sys.argv[3:]:
        print(json.dumps([form, damage(form, int(sys.argv[2]), Path(sys.argv[1]))]), flush=True)
