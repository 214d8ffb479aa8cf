"""Shards as webdataset 1.0.2 wrote them (``TarWriter``: ``fixtures/webdataset``), and its own reader read them: rows, stream, runs."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from dataset_files import open_dataset, rows_of, shard
from pydantic import ValidationError

from mt_core import DataError
from mt_train.cli.train import main

FIXTURES = Path(__file__).parent / "fixtures/webdataset"
BOTH = f"{FIXTURES}/{{00000..00001}}.tar"


A_STEP = [
    "--model",
    "kit-tiny",
    "--model.n-layers",
    "1",
    "--train.steps",
    "1",
    "--output",
    "none",
    "--data.eval",
    "none",
]
"""Words of a run of one step."""


def written(number: int) -> dict[str, Any]:
    """A sample as webdataset read it, under our names."""
    return {
        "__key__": f"part/{number:04}",
        "page": number,
        "about": {"é": [number]},
        "text": f"row {number}: naïve café",
        "cls": number % 2,
        "images": [{"bytes": b"picture %d" % number}, {"bytes": b"left %d" % number}],
        "ids.npy": list(range(number)),
        "long.txt": f"long {number}",
    }


def test_samples_are_those_that_webdataset_reads() -> None:
    dataset = open_dataset("webdataset", path=BOTH)
    rows = rows_of(dataset)
    assert rows == [
        {**written(number), "id": f"{FIXTURES}/{number // 3:05}.tar:{number % 3 + 1}"} for number in range(6)
    ]
    assert [dataset.row(number) for number in (5, 0, 3)] == [rows[5], rows[0], rows[3]]
    assert len(pickle.dumps(dataset)) < 1000, "what was read does not travel"
    assert pickle.loads(pickle.dumps(dataset)).row(4) == rows[4]


@pytest.mark.parametrize("path", [FIXTURES, f"{FIXTURES}/*.tar", f"file://{BOTH}", f"file://{FIXTURES}"])
def test_a_folder_a_pattern_and_an_address_stand_for_the_same_samples(
    path: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path))
    rows = rows_of(open_dataset("webdataset", path=path))
    assert [{name: row[name] for name in row if name != "id"} for row in rows] == list(map(written, range(6)))


def test_a_stream_has_the_same_rows_and_goes_on_behind_any_of_them() -> None:
    def make() -> Any:
        return open_dataset("webdataset", path=BOTH, streaming=True)

    whole = rows_of(open_dataset("webdataset", path=BOTH))
    for read in range(1, 6):
        source, again = make(), make()
        assert list(islice(source.rows(0, 0), read)) == whole[:read]
        again.load_state_dict(json.loads(json.dumps(source.state_dict())))
        assert list(again.rows(0, 0)) == whole[read:]
        assert list(again.rows(1, 7)) == whole
    with pytest.raises(
        DataError, match=r"stopped in 00001\.tar, file 2 of its stream, and dataset.path means other files now \(1\)"
    ):
        open_dataset("webdataset", path=FIXTURES / "00001.tar", streaming=True).load_state_dict(source.state_dict())


def test_a_stream_that_stopped_behind_the_end_of_a_shard_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard({"1.txt": b"x"}))
    source = open_dataset("webdataset", path=tmp_path, streaming=True)
    source.load_state_dict({"file": 0, "name": "a.tar", "sample": 2})
    with pytest.raises(DataError, match=r"stopped behind sample 2 of .*a\.tar, which has 1 now"):
        next(source.rows(0, 0))


def test_a_stream_looks_at_no_shard_before_its_turn_and_gives_bad_samples_as_faults(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard({"1.txt": b"good", "2.txt": b"\xff", "3.txt": b"too"}))
    (tmp_path / "b.tar").write_bytes(b"nothing like it" * 99)
    rows = open_dataset("webdataset", path=tmp_path, streaming=True).rows(0, 0)
    found = list(islice(rows, 3))
    assert [row["text"] for row in found if not isinstance(row, DataError)] == ["good", "too"]
    assert "a.tar:2, 2.txt:1: byte 0xff" in str(found[1])
    with pytest.raises(DataError, match=r"b\.tar is no tar archive"):
        next(rows)


def test_compressed_shards_are_read_by_number_and_named_by_a_stream(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((FIXTURES / "00000.tar").read_bytes()))
    rows = rows_of(open_dataset("webdataset", path=tmp_path))
    assert [row["page"] for row in rows] == [0, 1, 2]
    with pytest.raises(DataError, match=r"a\.tar\.gz is compressed, .* leave dataset.streaming out"):
        next(open_dataset("webdataset", path=tmp_path, streaming=True).rows(0, 0))


def test_endings_choose_the_members_and_fields_are_written(tmp_path: Path) -> None:
    dataset = open_dataset(
        "webdataset",
        path=BOTH,
        endings=(".JPG", "txt"),
        text_field="caption",
        fields={"prompt": "<image> What is it?", "response": " {caption}"},
    )
    row = dict(dataset.row(4))
    assert row.pop("id").endswith("00001.tar:2")
    assert row == {
        "__key__": "part/0004",
        "caption": "row 4: naïve café",
        "images": [{"bytes": b"picture 4"}],
        "prompt": "<image> What is it?",
        "response": " row 4: naïve café",
    }
    with pytest.raises(
        DataError, match=r"\{page\} of dataset.fields.text is no text and no number of this sample; there are '__key__'"
    ):
        open_dataset("webdataset", path=BOTH, endings=("txt",), fields={"text": "{page}"}).row(0)


def test_what_is_not_read_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "ab":
        members = {
            "1.txt": b"x",
            "1.xml": b"<x/>",
            "2.txt": b"y",
            "2.xml": b"",
            "LICENSE": b"",
            "__about__": b"{}",
        }
        (tmp_path / f"{name}.tar").write_bytes(shard(members))
    assert len(open_dataset("webdataset", path=tmp_path)) == 4
    assert caplog.messages == [
        f"members that end in .xml are not read, in shards of {tmp_path}",
        f"members whose names have no ending belong to no sample, in shards of {tmp_path}",
    ]


REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "pickles": (
        {"1.pyd": b"cos\nsystem\n", "1.json": b"{}"},
        r"a\.tar has members that end in \.pyd \(1\.pyd\): pickles, which may run code .* '\[json\]'",
    ),
    "an empty shard": ({}, r"a\.tar has no samples"),
    "no samples": ({"LICENSE": b"x", ".hidden.txt": b"x"}, r"a\.tar has no samples"),
    "nothing that is read": ({"1.xml": b"", "1.zip": b""}, r"a\.tar has no member that is read, only \.xml, \.zip\."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shards_without_anything_to_read_and_pickles_are_refused(case: str, tmp_path: Path) -> None:
    members, message = REFUSED[case]
    (tmp_path / "a.tar").write_bytes(shard(members))
    with pytest.raises(DataError, match=message):
        open_dataset("webdataset", path=tmp_path / "a.tar")


def test_pickles_are_left_alone_where_other_endings_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard({"1.pyd": b"cos\nsystem\n", "1.json": b'{"text": "x"}'}))
    assert open_dataset("webdataset", path=tmp_path, endings=("json",)).row(0)["text"] == "x"
    with pytest.raises(ValidationError, match=r"members that end in \.pyd are not read; name txt"):
        open_dataset("webdataset", path=tmp_path, endings=("pyd",))


def test_a_command_in_the_place_of_a_path_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is a command, and none is run; give the address itself"):
        open_dataset("webdataset", path=f"pipe:touch {tmp_path / 'run'}")


@pytest.mark.usefixtures("kit_model")
def test_a_run_trains_on_texts_and_names_a_bad_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {f"{number}.txt": b"text %d" % number for number in range(8)}
    (tmp_path / "a.tar").write_bytes(shard({**texts, "8.json": b'{"text": '}))
    words = list(A_STEP)
    words += ["--dataset.path", str(tmp_path / "{a,a}.tar")]  # the ending names the dataset
    assert main(words) == 1
    assert "a.tar:9, 8.json:1: " in capsys.readouterr().err
    assert main([*words, "--data.on-bad-row", "skip", "--data.max-bad-rows", "1"]) == 0
    assert "8 rows" in capsys.readouterr().out


@pytest.mark.usefixtures("kit_model")
def test_images_of_samples_reach_the_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mt_plugin_multimodal")
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 0, 0)).save(content, "PNG")
    members = {
        f"{number}.{ending}": data
        for number in range(4)
        for ending, data in (("png", content.getvalue()), ("txt", b"red"))
    }
    (tmp_path / "a.tar").write_bytes(shard(members))
    words = list(A_STEP)
    words += [
        "--dataset",
        "webdataset",
        "--dataset.path",
        str(tmp_path),
        "--dataset.fields",
        "{text: '<image> {text}'}",
    ]
    words += [
        "--encoders",
        "clip",
        "--encoders.clip.image",
        "16",
        "--encoders.clip.patch",
        "8",
        "--encoders.clip.blocks",
        "1",
    ]
    assert main(words) == 0, capsys.readouterr().err
    assert "16×16 → 4 tokens" in capsys.readouterr().out


def test_shards_that_are_links_into_another_folder_are_read_with_their_images(tmp_path: Path) -> None:
    """As in a snapshot of the Hub, whose files are links to blobs without an ending."""
    (tmp_path / "blobs").mkdir()
    shutil.copy(FIXTURES / "00000.tar", tmp_path / "blobs/0a1b")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot/a.tar").symlink_to("../blobs/0a1b")
    assert open_dataset("webdataset", path=tmp_path / "snapshot").row(0)["images"] == written(0)["images"]
