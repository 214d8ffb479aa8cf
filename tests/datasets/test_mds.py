"""MDS shards, as mosaicml-streaming 0.13.0 wrote them (``MDSWriter``): ``fixtures/mds``, each of four shards."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from dataset_files import open_dataset, rows_of

from mt_core import DataError

FIXTURES = Path(__file__).parent / "fixtures/mds"


def written(number: int) -> dict[str, Any]:
    """What the writer was given."""
    return {
        "about": {"page": number},
        "fixed": [number] * 3,
        "n": number,
        "packed": list(range(7, 8 + number % 3)),
        "score": number / 4,
        "text": f"row {number}: naïve café {'x' * (number % 5)}",
        "tokens": [each + 60000 * (number == 3) for each in range(number % 4 + 1)],
        "weight": number / 3,
    }


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_samples_are_those_that_mosaicml_wrote(name: str) -> None:
    dataset = open_dataset("mds", path=FIXTURES / name, ids_in_bytes="int64")
    rows = rows_of(dataset)
    index = FIXTURES / name / "index.json"
    assert rows == [{"id": f"{index}:{number + 1}", **written(number)} for number in range(12)]
    assert len(pickle.dumps(dataset)) < 6000, "what was read does not travel"
    assert pickle.loads(pickle.dumps(dataset)).row(11) == rows[11]


def test_bytes_are_bytes_where_nobody_says_that_they_are_ids() -> None:
    assert open_dataset("mds", path=FIXTURES / "plain/index.json").row(0)["packed"] == (7).to_bytes(8, "little")


def test_folders_below_are_read_in_order(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(FIXTURES / "zstd", tmp_path / name)
    rows = rows_of(open_dataset("mds", path=tmp_path))
    assert [row["n"] for row in rows] == [*range(12), *range(12)]
    assert rows[12]["id"] == f"{tmp_path / 'b/index.json'}:1"


def merged(folder: Path, *names: str) -> Path:
    """Copies of the fixtures, and an index of all of their shards, as ``streaming.base.util.merge_index`` writes it."""
    shards = []
    for name in names:
        shutil.copytree(FIXTURES / ("zstd" if name == "a" else "plain"), folder / name)
        for shard in json.loads((folder / name / "index.json").read_text())["shards"]:
            for file in filter(None, (shard["raw_data"], shard["zip_data"])):
                file["basename"] = f"{name}/{file['basename']}"
            shards.append(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def test_a_merged_index_names_shards_in_folders_below_which_are_read_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = merged(tmp_path / "merged", "b", "a")
    for path in (folder, folder / "index.json"):
        rows = rows_of(open_dataset("mds", path=path))
        assert [row["n"] for row in rows] == [*range(12), *range(12)]
        assert [row["id"] for row in rows] == [f"{folder / 'index.json'}:{number}" for number in range(1, 25)]
    assert not caplog.records, "nothing is said of shards that would not be read"
    shutil.copytree(FIXTURES / "plain", folder / "c/d")  # after the merge
    rows = rows_of(open_dataset("mds", path=folder))
    assert [row["id"] for row in rows[:12]] == [f"{folder / 'c/d/index.json'}:{number}" for number in range(1, 13)]
    assert len(rows) == 36


def test_a_column_of_ids_leaves_rows_the_ids_of_their_places(tmp_path: Path) -> None:
    """As in every other format: several samples may say the same, and messages name places."""
    shutil.copytree(FIXTURES / "plain", tmp_path / "a")
    with_index(lambda shard: shard["column_names"].__setitem__(shard["column_names"].index("n"), "id"))(tmp_path / "a")
    assert open_dataset("mds", path=tmp_path / "a").row(1)["id"] == f"{tmp_path}/a/index.json:2"


def test_a_value_of_json_that_is_too_deep_is_a_bad_row(tmp_path: Path) -> None:
    text = b"[" * 100_000
    shard = struct.pack("<3I", 1, 12, 16 + len(text)) + struct.pack("<I", len(text)) + text
    (tmp_path / "a.mds").write_bytes(shard)
    file = {"basename": "a.mds", "bytes": len(shard), "hashes": {}}
    about = {"format": "mds", "version": 2, "compression": None, "samples": 1, "raw_data": file, "zip_data": None}
    about |= {"column_names": ["a"], "column_encodings": ["json"], "column_sizes": [None]}
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [about]}))
    with pytest.raises(DataError, match=r"index\.json:1: a\.mds is damaged \(maximum recursion depth"):
        open_dataset("mds", path=tmp_path).row(0)


def test_columns_that_may_run_code_are_refused() -> None:
    with pytest.raises(DataError, match="has columns of pkl, which are not read: pickles may run code"):
        open_dataset("mds", path=FIXTURES / "pickled")


def with_index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        told = json.loads((folder / "index.json").read_text())
        change(told["shards"][0])
        (folder / "index.json").write_text(json.dumps(told))

    return write


def with_shard(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "shard.00000.mds.zstd"
        path.write_bytes(change(path.read_bytes()))

    return write


def with_head(size: bytes) -> Callable[[Path], None]:
    """Let the frame of a shard say another size of its content, and its index the hashes of nothing."""

    def write(folder: Path) -> None:
        data = (folder / "shard.00000.mds.zstd").read_bytes()
        plain = zstandard.ZstdDecompressor().decompress(data)
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
        assert packed[4] & 0b11100000 == 0, "no size, and a window"
        packed = packed[:4] + bytes([packed[4] | 0b11000000]) + packed[5:6] + size + packed[6:]
        (folder / "shard.00000.mds.zstd").write_bytes(packed)
        with_index(lambda shard: shard["zip_data"].update(bytes=len(packed), hashes={}))(folder)

    return write


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no index": (
        lambda folder: (folder / "index.json").rename(folder / "other.json") and None,
        "there is no index.json",
    ),
    "another file": (lambda folder: (folder / "index.json").write_text("[]") and None, "is no index of MDS shards"),
    "a later version": (with_index(lambda shard: shard.update(version=3)), "shards of mds 3, and mds 2 is read"),
    "another compression": (with_index(lambda shard: shard.update(compression="br:3")), "compressed with br:3"),
    "a path outside": (
        with_index(lambda shard: shard["zip_data"].update(basename="../x")),
        r"names a file outside its folder: '\.\./x'",
    ),
    "a path outside by way of a folder": (
        with_index(lambda shard: shard["raw_data"].update(basename="b/../../x")),
        r"names a file outside its folder: 'b/\.\./\.\./x'",
    ),
    "an absolute path": (
        with_index(lambda shard: shard["raw_data"].update(basename="/etc/passwd")),
        "names a file outside its folder: '/etc/passwd'",
    ),
    "a name with a null character": (
        with_index(lambda shard: shard["raw_data"].update(basename="a\0b")),
        "names a file outside its folder: ",
    ),
    "a missing shard": (lambda folder: (folder / "shard.00000.mds.zstd").unlink(), "cannot be read: No such file"),
    "half a shard": (with_shard(lambda data: data[:99]), "has 99 bytes, not 393 and another sha1"),
    "a flipped bit": (
        with_shard(lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:]),
        "another sha1 than index.json says",
    ),
    "fewer samples": (with_index(lambda shard: shard.update(samples=2)), "has not the 2 samples"),
    "another size": (with_index(lambda shard: shard["raw_data"].update(bytes=5)), "is damaged: "),
    "an array of another type": (
        with_index(lambda shard: shard["column_encodings"].__setitem__(1, "ndarray:object:3")),
        "has columns of ndarray:object:3, which are not read",
    ),
    "no size": (with_index(lambda shard: shard["raw_data"].pop("bytes")), "is no index of MDS shards: KeyError"),
    "no file": (with_index(lambda shard: shard.update(raw_data={})), "is no index of MDS shards: KeyError"),
    "samples beyond number": (with_index(lambda shard: shard.update(samples=2**70)), "is no count"),
    "fewer samples than none": (with_index(lambda shard: shard.update(samples=-3)), "-3 is no count"),
    "two columns of a name": (
        with_index(lambda shard: shard["column_names"].__setitem__(1, shard["column_names"][0])),
        "two columns of one name",
    ),
    "an index that is too deep": (
        lambda folder: (folder / "index.json").write_text("[" * 100_000) and None,
        "is no index of MDS shards: RecursionError",
    ),
    "a size of terabytes": (with_head((1 << 42).to_bytes(8, "little")), "is damaged"),
    "other columns": (with_index(lambda shard: shard["column_sizes"].__setitem__(1, 8)), "index.json:1: .* is damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_shards_that_are_not_whole_are_named(case: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "zstd", tmp_path / "a")
    change, said = BAD[case]
    change(tmp_path / "a")
    with pytest.raises(DataError, match=said):
        rows_of(open_dataset("mds", path=tmp_path / "a"))
