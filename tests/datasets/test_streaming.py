"""Rows read from the front: files and their compressed forms, pipes, Hugging Face streams; resumed behind any row."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zstandard
from dataset_files import ROWS, json_lines, open_dataset

from mt_core import DataError, Stream


@pytest.fixture(params=["plain", "gz", "zst"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three files of rows, with blank lines, a BOM, and no line end at the end."""
    pack = {"plain": bytes, "gz": gzip.compress, "zst": zstandard.compress}[request.param]
    suffix = "" if request.param == "plain" else f".{request.param}"
    lines = [json.dumps({"text": f"row {number} é"}, ensure_ascii=False) for number in range(9)]
    contents = ["\ufeff" + "\n".join(lines[:3]), "\n\n".join(lines[3:7]) + "\n", "\n" + "\r\n".join(lines[7:]) + "\n\n"]
    for name, content in zip("abc", contents, strict=True):
        (tmp_path / f"{name}.jsonl{suffix}").write_bytes(pack(content.encode()))
    return tmp_path


@pytest.fixture
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def resumed_anywhere(make: Any) -> list[Any]:
    """The rows of an epoch, after it was seen that a fresh source goes on behind each of them, and that epochs are alike."""
    whole = list(make().rows(0, 0))
    for read in range(1, len(whole)):
        source = make()
        assert list(islice(source.rows(0, 0), read)) == whole[:read]
        state = json.loads(json.dumps(source.state_dict()))
        again = make()
        again.load_state_dict(state)
        assert list(again.rows(0, 0)) == whole[read:]
        assert list(again.rows(1, 7)) == whole
    return whole


def test_files_are_read_in_order_and_from_behind_any_row(folder: Path) -> None:
    rows = resumed_anywhere(lambda: open_dataset("stream", path=f"{folder}/*"))
    assert [row["text"] for row in rows] == [f"row {number} é" for number in range(9)]
    places = [f"{Path(row['id']).name.partition('.')[0]}{row['id'].rpartition(':')[2]}" for row in rows]
    assert places == ["a1", "a2", "a3", "b1", "b3", "b5", "b7", "c2", "c3"]


@pytest.mark.parametrize("unit", ["file", "paragraphs", "lines"])
@pytest.mark.parametrize("pack", ["", "gz"])
def test_text_has_the_documents_of_the_dataset_text_and_is_read_from_behind_any(
    pack: str, unit: str, tmp_path: Path
) -> None:
    texts = ["\ufeffone é\r\ntwo\n\n \n[three]\nfour\n", "\n\nfive\n\nsix", "seven\n\n"]
    ending = f".txt.{pack}" if pack else ".txt"
    for name, text in zip("abc", texts, strict=True):
        content = text.encode()
        (tmp_path / f"{name}{ending}").write_bytes(gzip.compress(content) if pack else content)
    given = resumed_anywhere(lambda: open_dataset("stream", path=tmp_path, split=unit))
    assert len(given) == {"file": 3, "paragraphs": 5, "lines": 7}[unit]
    indexed = open_dataset("text", path=tmp_path, split=unit)
    known = [indexed.row(number) for number in range(len(indexed))]
    assert [row["text"] for row in given] == [row["text"] for row in known]
    if not pack:
        assert given == known
    if unit == "file":
        assert list(open_dataset("stream", path=tmp_path).rows(0, 0)) == given, "a name that ends in .txt says so"


def test_text_that_is_no_utf_8_is_given_as_its_fault(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"one\n\xff\ntwo\n")
    first, fault, last = open_dataset("stream", path=tmp_path / "a.md", split="lines").rows(0, 0)
    assert (first["text"], last["text"]) == ("one", "two")
    assert f"{tmp_path}/a.md:2: byte 0xff" in str(fault)


def test_a_document_that_is_too_long_is_told_how_to_cut_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt_plugin_datasets.streamed_text.MOST_ROW_BYTES", 1 << 20)
    (tmp_path / "a.txt").write_text("a line\n" * 200_000)
    with pytest.raises(DataError, match=r"a\.txt:1: a document of more than 1 MiB.*dataset\.split paragraphs or lines"):
        list(open_dataset("stream", path=tmp_path / "a.txt").rows(0, 0))


def test_rows_of_json_in_a_file_of_text_are_not_trained_on_as_text_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('\n{"text": "a"}\n{"text": "b"}\n')
    with pytest.raises(DataError, match=r"a\.txt:2 is a row of JSON.*name it \.jsonl, or set dataset\.split"):
        list(open_dataset("stream", path=tmp_path / "a.txt").rows(0, 0))
    rows = open_dataset("stream", path=tmp_path / "a.txt", split="lines").rows(0, 0)
    assert [row["text"] for row in rows] == ['{"text": "a"}', '{"text": "b"}']
    (tmp_path / "a.txt").write_text("{a brace}\n")
    assert [row["text"] for row in open_dataset("stream", path=tmp_path / "a.txt").rows(0, 0)] == ["{a brace}\n"]


def test_it_is_a_stream_and_eval_path_has_rows_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines())
    (tmp_path / "b.jsonl").write_text('{"prompt": "q", "response": "r"}\n')
    assert isinstance(open_dataset("stream", path=tmp_path / "a.jsonl"), Stream)
    assert open_dataset("stream", "eval", path=tmp_path / "a.jsonl") is None
    [row] = open_dataset("stream", "eval", path=tmp_path / "a.jsonl", eval_path=tmp_path / "b.jsonl").rows(0, 0)
    assert row == {"prompt": "q", "response": "r", "id": f"{tmp_path}/b.jsonl:1"}


def test_a_malformed_line_is_given_as_its_fault_and_the_rows_behind_it_come(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": }\n[1]\n\xff\n{"text": "two"}')
    first, *faults, last = open_dataset("stream", path=tmp_path / "a.jsonl").rows(0, 0)
    assert (first["text"], last["text"]) == ("one", "two")
    assert [type(fault) for fault in faults] == [DataError] * 3
    assert [str(fault).partition(": ")[0] for fault in faults] == [f"{tmp_path}/a.jsonl:{line}" for line in (2, 3, 4)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b'\xef\xbb\xbf\n [{"text": "one"},\n  {"text": "two"}]',
            "a.json is a JSON array, .* --dataset jsonl, which takes arrays",
        ),
        ('{"text": "one"}\n'.encode("utf-16"), "a.json is UTF-16, not UTF-8. Convert it: iconv -f UTF-16"),
    ],
    ids=["array", "utf-16"],
)
def test_a_file_of_another_form_is_told_as_a_whole(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(open_dataset("stream", path=tmp_path / "a.json").rows(0, 0))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_file_that_is_cut_off_is_an_error_where_it_ends(pack: Any, tmp_path: Path) -> None:
    packed = pack(b"".join(b'{"text": "%x"}\n' % (number**9) for number in range(20_000)))
    (tmp_path / "a.jsonl").write_bytes(packed[: len(packed) // 2])
    rows = open_dataset("stream", path=tmp_path / "a.jsonl").rows(0, 0)
    with pytest.raises(DataError, match=r"a\.jsonl is cut off or damaged"):
        list(rows)


def test_a_state_of_files_that_are_gone_or_shorter_is_refused(folder: Path) -> None:
    source = open_dataset("stream", path=folder)
    list(islice(source.rows(0, 0), 8))
    state = source.state_dict()
    last = sorted(folder.iterdir())[-1]
    shorter = (
        gzip.compress(b"{}") if last.suffix == ".gz" else zstandard.compress(b"{}") if last.suffix == ".zst" else b"{}"
    )
    last.write_bytes(shorter)
    source.load_state_dict(state)
    with pytest.raises(DataError, match=r"/c\.jsonl.* is cut off or damaged \(it is shorter than it was\)"):
        list(source.rows(0, 0))
    last.rename(folder / f"d{last.name[1:]}")
    with pytest.raises(DataError, match=r"the run stopped in c\.jsonl.*, file 3 .* means other files now \(3\)"):
        open_dataset("stream", path=folder).load_state_dict(state)


def test_a_pipe_is_read_as_it_comes_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    seen = threading.Event()

    def write() -> None:
        with (tmp_path / "pipe").open("w") as file:
            print('{"text": "one"}', file=file, flush=True)
            assert seen.wait(30)
            print('\n{"text": "two"}', file=file)

    writer = threading.Thread(target=write)
    writer.start()
    source = open_dataset("stream", path=tmp_path / "pipe")
    rows = source.rows(0, 0)
    assert next(rows) == {"text": "one", "id": f"{tmp_path}/pipe:1"}
    seen.set()
    assert [row["id"] for row in rows] == [f"{tmp_path}/pipe:3"]
    writer.join()
    assert source.state_dict() == {}
    with pytest.raises(DataError, match="is a pipe, whose hash nobody knows before its end"):
        open_dataset("stream", path=tmp_path / "pipe", sha256="a" * 64)
    with pytest.raises(DataError, match="is a pipe, whose rows come only once"):
        source.rows(1, 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DataError, match="several processes would each get a part of its rows"):
        open_dataset("stream", path=tmp_path / "pipe").rows(0, 0)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_a_folder_of_hugging_face_streams_and_is_resumed_behind_any_row(kind: str, tmp_path: Path) -> None:
    import datasets

    halves = [datasets.Dataset.from_list(part) for part in (ROWS[:7], ROWS[7:12])]
    path = tmp_path / "set"
    if kind == "saved":
        datasets.concatenate_datasets(halves).save_to_disk(path)
    for number, half in enumerate(halves if kind != "saved" else ()):
        path.mkdir(exist_ok=True)
        write = half.to_json if kind == "jsonl" else half.to_parquet
        write(path / f"train-{number}.{kind}")
    rows = resumed_anywhere(lambda: open_dataset("hf", path=path, streaming=True))
    assert rows == [{**row, "id": f"{path}[train]:{number}"} for number, row in enumerate(ROWS[:12], start=1)]


@pytest.mark.usefixtures("offline")
def test_a_row_that_hugging_face_cannot_read_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"a": 1}\n{"a"')
    stream: Iterator[Any] = open_dataset("hf", path=tmp_path / "set", streaming=True).rows(0, 0)
    with pytest.raises(DataError, match=r"/set\[train\]:\d cannot be read: .* Fetch or write the dataset anew"):
        list(stream)
    with pytest.raises(DataError, match="cannot be read as split 'tests'"):
        open_dataset("hf", path=tmp_path / "set", split="tests", streaming=True)
