"""Samples as rows: a sample that cannot be used is named with its shard and member, and no other suffers."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import open_dataset, shard
from pydantic import ValidationError

from mt_core import DataError
from mt_plugin_datasets import shard_samples, shard_values


def npy(values: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.asarray(values), allow_pickle=True)
    return sink.getvalue()


def test_members_are_read_by_their_endings(tmp_path: Path) -> None:
    members = {
        "a.txt": "\ufefftext é".encode(),
        "a.json": b'\xef\xbb\xbf{"n": 1}',
        "a.turns.json": b'[{"role": "user"}]',
        "a.cls": b" -3\n",
        "a.npy": npy(np.arange(6, dtype=">i4").reshape(2, 3)),
        "a.f.npy": npy(np.asfortranarray([[1.5, 2.0], [3.0, 4.0]])),
        "a.0.png": b"first",
        "a.1.jpg": b"second",
        "a.flac": b"sound",
        "a.mp4": b"film",
        "a.more.json.gz": gzip.compress(b"[1]"),
        "a.2.png.gz": gzip.compress(b"third"),
        "b.json": b'["a", "list"]',
    }
    (tmp_path / "a.tar").write_bytes(shard(members))
    dataset = open_dataset("webdataset", path=tmp_path / "a.tar")
    assert dataset.row(0) == {
        "id": f"{tmp_path}/a.tar:1",
        "__key__": "a",
        "text": "text é",
        "n": 1,
        "turns.json": [{"role": "user"}],
        "cls": -3,
        "npy": [[0, 1, 2], [3, 4, 5]],
        "f.npy": [[1.5, 2.0], [3.0, 4.0]],
        "images": [{"bytes": b"first"}, {"bytes": b"second"}, {"bytes": b"third"}],
        "audios": [{"bytes": b"sound"}],
        "videos": [{"bytes": b"film"}],
        "more.json": [1],
    }
    assert dataset.row(1) == {"id": f"{tmp_path}/a.tar:2", "__key__": "b", "json": ["a", "list"]}


def header(text: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


BAD: dict[str, tuple[dict[str, bytes], str]] = {
    "text in another encoding": ({"x.txt": "é".encode("latin-1")}, r"x\.txt:1: byte 0xe9 at offset 0 is not UTF-8"),
    "broken JSON": ({"x.json": b'{"a": }'}, r"x\.json:1: Expecting value"),
    "a key twice": ({"x.json": b'{"a": 1, "a": 2}'}, r"x\.json:1: key 'a' stands twice"),
    "a label of letters": ({"x.cls": b"cat"}, r"x\.cls: b'cat' is no whole number"),
    "an ending twice": ({"x.txt": b"a", "x.TXT": b"b"}, r"x\.TXT: two members of this sample end in \.txt"),
    "a field twice": (
        {"x.txt": b"a", "x.json": b'{"text": "b"}'},
        r"x\.json: it gives the field 'text', which another member .* set dataset.text_field",
    ),
    "images that are a field": ({"x.json": b'{"images": 3}', "x.png": b""}, r"x\.png: it gives the field 'images'"),
    "images and a field": ({"x.png": b"", "x.json": b'{"images": []}'}, r"x\.json: it gives the field 'images'"),
    "half a gzip": ({"x.txt.gz": gzip.compress(b"text")[:-4]}, r"x\.txt\.gz: it is no whole gzip file"),
    "no gzip": ({"x.txt.gz": b"text"}, r"x\.txt\.gz: it is no whole gzip file"),
    "pickled values": ({"x.npy": npy(np.array([{}], object))}, r"x\.npy: it is no array of numbers \(it has object"),
    "texts": ({"x.npy": npy(["a"])}, r"x\.npy: it is no array of numbers \(it has <U1"),
    "half an array": ({"x.npy": npy([1, 2, 3])[:-3]}, r"x\.npy: it is no array of numbers"),
    "an array beyond its end": (
        {"x.npy": header(b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}\n")},
        r"x\.npy: it is no array of numbers \(cannot reshape",
    ),
    "no array": ({"x.npy": b"text"}, r"x\.npy: it is no array of numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_sample_that_cannot_be_used_is_named_and_its_neighbours_are_read(case: str, tmp_path: Path) -> None:
    members, message = BAD[case]
    (tmp_path / "a.tar").write_bytes(shard({"1.txt": b"before", **members, "z.txt": b"behind"}))
    dataset = open_dataset("webdataset", path=tmp_path / "a.tar")
    assert [dataset.row(0)["text"], dataset.row(2)["text"]] == ["before", "behind"]
    with pytest.raises(DataError, match=r"a\.tar:2, " + message):
        dataset.row(1)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE])
def test_links_and_devices_are_never_followed(kind: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("1.txt", "2.xml"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(tmp_path / "secret.txt")
            archive.addfile(info)
    dataset = open_dataset("webdataset", path=tmp_path / "a.tar")
    with pytest.raises(
        DataError, match=r"a\.tar:1, 1\.txt: it is a .*, whose content is not in its place in the shard"
    ):
        dataset.row(0)
    assert dataset.row(1)["__key__"] == "2", "an ending that is not read does no harm"


def test_names_that_lead_out_of_the_shard_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    members = {"../secret.txt": b"a", f"{tmp_path}/secret.txt": b"b"}
    (tmp_path / "a.tar").write_bytes(shard(members))
    dataset = open_dataset("webdataset", path=tmp_path / "a.tar")
    assert [dataset.row(number)["text"] for number in range(2)] == ["a", "b"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.tar", "secret.txt"], "nothing is unpacked"


def test_a_sample_of_too_many_bytes_is_named_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shard_samples, shard_values):
        monkeypatch.setattr(module, "MOST_ROW_BYTES", 1 << 20)
    bomb, half = gzip.compress(bytes(4 << 20)), gzip.compress(b"x" * 600_000)
    members = {"a.mp4": bytes(1 << 19), "a.txt": b"x" * (1 << 20), "b.txt.gz": bomb, "c.txt": b"c"}
    members |= {"d.1.txt.gz": half, "d.2.txt.gz": half}
    (tmp_path / "a.tar").write_bytes(shard(members))
    dataset = open_dataset("webdataset", path=tmp_path / "a.tar")
    for number, name in ((0, "a.txt"), (1, "b.txt.gz"), (3, "d.2.txt.gz")):
        with pytest.raises(DataError, match=rf":{number + 1}, {name}: the sample has more than 1 MiB"):
            dataset.row(number)
    assert dataset.row(2)["text"] == "c"
    assert open_dataset("webdataset", path=tmp_path / "a.tar", endings=("mp4",)).row(0)["videos"]


def test_a_text_of_fields_has_them_as_the_sample_does(tmp_path: Path) -> None:
    """In any order of the texts, and under any name that a key of JSON has."""
    json = b'{"alt text": "a cat", "__key__": "other"}'
    (tmp_path / "a.tar").write_bytes(shard({"x.txt": b"t", "x.json": json}))
    fields = {"text": "<image> {text}", "prompt": "{__key__}: {text}, {alt text} {no field} {}"}
    row = open_dataset("webdataset", path=tmp_path / "a.tar", fields=fields).row(0)
    assert (row["text"], row["prompt"]) == ("<image> t", "x: t, a cat {no field} {}")
    for options in ({"fields": {"id": "{text}"}}, {"text_field": "id"}):
        with pytest.raises(ValidationError, match="'id' is the place of a sample"):
            open_dataset("webdataset", path=tmp_path / "a.tar", **options)
