"""Which files a path means, arrays in them, compression and hashes."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import logging
import lzma
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError
from mt_plugin_standard.datasets.jsonl import JsonlConfig, build_jsonl
from mt_plugin_standard.datasets.text import TextConfig, build_text

zstandard = pytest.importorskip("zstandard")

LINES = b'{"text": "a"}\n{"text": "b"}\n'


def rows_of(path: Path, split: Any = "train", **options: Any) -> list[dict[str, Any]]:
    dataset = build_jsonl(JsonlConfig(path=str(path), **options), split=split)
    assert dataset is not None
    return [dict(dataset.row(index)) for index in range(len(dataset))]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab\\"{}[],:\n é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"]}', max_size=3), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text('ab"}', max_size=3).filter(lambda name: name != "id"), values, max_size=3)


@given(st.lists(objects, min_size=1, max_size=5), st.sampled_from([None, 0, 2]), values, st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_array_gives_what_json_reads_at_the_top_and_in_a_field(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int | None, other: Any, nested: bool
) -> None:
    file = tmp_path_factory.mktemp("any") / "a.json"
    whole = {"first": other, "data": {"x": other, "train": rows, "y": other}, "last": other} if nested else rows
    file.write_text(json.dumps(whole, indent=indent), encoding="utf-8")
    found = rows_of(file, field="data.train") if nested else rows_of(file)
    assert [{key: value for key, value in row.items() if key != "id"} for row in found] == rows
    assert len({row["id"] for row in found}) == len(rows)
    text = file.read_text(encoding="utf-8").splitlines()
    for row in found:
        line = row["id"].removeprefix(f"{file}:").partition("[")[0]
        assert "{" in text[int(line) - 1]


def test_elements_of_one_line_are_told_apart_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}]')
    for name in "bc":
        (tmp_path / f"{name}.json").write_text('[{"a": 3}]')
    assert [row["id"].rpartition("/")[2] for row in rows_of(tmp_path)] == [
        "a.json:1[0]",
        "a.json:1[1]",
        "b.json:1",
        "c.json:1",
    ]


def test_an_array_is_not_held_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_text(json.dumps([{"text": "x" * 2000}] * 5000))
    tracemalloc.start()
    dataset = build_jsonl(JsonlConfig(path=str(file)), split="train")
    assert dataset is not None
    assert len(dataset.row(4999)["text"]) == 2000
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 * len(dataset) < file.stat().st_size / 10
    assert most < file.stat().st_size / 10


def test_a_pattern_means_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a/1.jsonl", "a/3.jsonl.gz", "a/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    names = [Path(row["id"].rpartition(":")[0]).name for row in rows_of(tmp_path / "*" / "*.jsonl*")]
    assert names == ["1.jsonl"] * 2 + ["3.jsonl.gz"] * 2 + ["2.jsonl"] * 2
    assert len(rows_of(tmp_path / "**" / "[12].jsonl")) == 4
    assert len(rows_of(tmp_path)) == 6, "a folder has compressed files, too"


COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_read_as_the_plain_one_and_its_copy_goes_with_the_process(
    suffix: str, tmp_path: Path
) -> None:
    file, copies = tmp_path / f"a.jsonl{suffix}", tmp_path / "copies"
    copies.mkdir()
    file.write_bytes(COMPRESS[suffix](LINES) + COMPRESS[suffix](LINES))
    code = (
        "import os, sys; from pathlib import Path; from mt_core.files import JsonRows\n"
        "rows = JsonRows([Path(sys.argv[1])])\n"
        "pid = os.fork()\nif not pid: sys.exit(0)\nos.waitpid(pid, 0)\n"
        "print([rows.row(n)['id'] for n in range(len(rows))], len(os.listdir(os.environ['TMPDIR'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        env={**os.environ, "TMPDIR": str(copies)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{[f'{file}:{line}' for line in (1, 2, 3, 4)]} 1\n", done.stderr
    assert not list(copies.iterdir())
    texts = build_text(TextConfig(path=str(file), split="lines"), split="train")
    assert texts is not None
    assert texts.row(0)["text"] == '{"text": "a"}'


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("part", [0.05, 0.5, 0.99])
def test_a_compressed_file_that_is_cut_off_is_an_error_that_names_it(suffix: str, part: float, tmp_path: Path) -> None:
    whole = COMPRESS[suffix](os.urandom(3000).hex().encode())
    file = tmp_path / f"a.jsonl{suffix}"
    file.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(DataError, match=rf"a\.jsonl\{suffix} is cut off or damaged \(.*\)\. Fetch or write it anew"):
        rows_of(file)


def test_a_hash_that_does_not_match_is_an_error_that_shows_both(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(LINES)
    right = {name: hashlib.new(name, LINES).hexdigest() for name in ("sha256", "sha1")}
    assert len(rows_of(file, **right)) == 2
    for name, digest in right.items():
        wrong = digest[::-1]
        with pytest.raises(DataError, match=rf"a\.jsonl has {name} {digest}, and dataset\.{name} asks for {wrong}"):
            rows_of(file, **{name: wrong})
    (tmp_path / "b.jsonl").write_bytes(LINES)
    with pytest.raises(DataError, match=r"dataset\.sha1 is the hash of one file, and dataset\.path means 2"):
        rows_of(tmp_path, sha1=right["sha1"])


def test_rows_for_evaluation_have_a_place_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "c"}')
    assert build_jsonl(JsonlConfig(path=str(tmp_path / "a.jsonl")), split="eval") is None
    assert build_text(TextConfig(path=str(tmp_path / "a.jsonl")), split="eval") is None
    held_out = rows_of(tmp_path / "a.jsonl", split="eval", eval_path=str(tmp_path / "b.jsonl"))
    assert [row["text"] for row in held_out] == ["c"]


PLACES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "no match": ("*.jsonl", lambda folder: None, r"the pattern .*/\*\.jsonl matches no file\. Give one that does"),
    "only folders match": ("s*", lambda folder: (folder / "sub").mkdir(), r"matches no file, only folders"),
    "a broken link matches": ("*.jsonl", lambda folder: (folder / "a.jsonl").symlink_to("b"), r"is a broken link"),
    "bzip2": (
        "a.bz2",
        lambda folder: (folder / "a.bz2").write_bytes(bz2.compress(LINES)),
        r"a\.bz2 is packed by bzip2",
    ),
    "xz": (
        "a.xz",
        lambda folder: (folder / "a.xz").write_bytes(lzma.compress(LINES)),
        r"packed by xz, .* gzip or zstd",
    ),
    "zip": ("a", lambda folder: zipfile.ZipFile(folder / "a", "w").writestr("b", LINES), r"/a is packed by zip"),
    "not compressed": ("a.gz", lambda folder: (folder / "a.gz").write_bytes(LINES), r"a\.gz is not compressed, though"),
    "no room": (
        "a.gz",
        lambda folder: (folder / "a.gz").write_bytes(b"\x1f\x8b\x08\x09"),
        r"a\.gz is cut off or damaged",
    ),
    "UTF-16 in it": (
        "a.jsonl.gz",
        lambda folder: (folder / "a.jsonl.gz").write_bytes(gzip.compress("{}".encode("utf-16"))),
        r"a\.jsonl\.gz is UTF-16",
    ),
    "a name that is too long": ("x" * 300, lambda folder: None, r"cannot be read: File name too long"),
}


@pytest.mark.parametrize("fault", PLACES)
def test_a_path_that_leads_nowhere_says_what_to_do(fault: str, tmp_path: Path) -> None:
    path, make, message = PLACES[fault]
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / path)


def test_a_folder_tells_of_files_that_it_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("mt_core")
    monkeypatch.setattr(logger, "propagate", False)  # as it is once a command has set up its console
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    for name in ("a.txt", "b.md", "README.md", ".hidden", "deep/c.rst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    for _ in range(2):
        assert len(build_text(TextConfig(path=str(tmp_path)), split="train") or []) == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "not read, since a folder stands for its *.txt files: b.md, deep/c.rst. Where they are rows" in line
    caplog.clear()
    assert len(build_text(TextConfig(path=f"{tmp_path}/*.*"), split="train") or []) == 3
    assert not caplog.records
