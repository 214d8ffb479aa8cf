"""Hugging Face ``datasets``: folders that it wrote, folders of files, and names that cannot be had."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from dataset_files import CALLS, CALLS_READ, ROWS, open_dataset, rows_of

from mt_core import DataError
from mt_plugin_datasets import file_cache, hub
from mt_plugin_datasets.hub import HubConfig, hub_files


@pytest.fixture(autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and a cache of its own."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


@pytest.fixture
def saved_folder(tmp_path: Path) -> Path:
    import datasets

    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:3])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    datasets.Dataset.from_list(ROWS[:5]).save_to_disk(tmp_path / "one")
    return tmp_path


def test_what_save_to_disk_wrote_comes_back_by_split(saved_folder: Path) -> None:
    path = saved_folder / "saved"
    dataset = open_dataset("hf", path=path, eval_split="test")
    assert rows_of(dataset) == [{**row, "id": f"{path}[train]:{n}"} for n, row in enumerate(ROWS, start=1)]
    assert len(open_dataset("hf", "eval", path=path, eval_split="test")) == 3
    assert open_dataset("hf", "eval", path=path) is None
    assert len(open_dataset("hf", path=saved_folder / "one")) == 5
    assert pickle.loads(pickle.dumps(dataset)).row(7) == dataset.row(7)


@pytest.mark.parametrize("streaming", [False, True])
def test_slices_of_what_was_saved_are_those_of_load_dataset(saved_folder: Path, streaming: bool) -> None:
    texts = [row["prompt"] for row in ROWS]

    def read(folder: str, split: str) -> list[str]:
        found = open_dataset("hf", path=saved_folder / folder, split=split, streaming=streaming)
        return [row["prompt"] for row in (found.rows(0, 0) if streaming else rows_of(found))]

    assert read("saved", "train[2:]") == texts[2:]
    assert read("saved", "test[-1:]+train[:50%]") == [*texts[2:3], *texts[: round(len(ROWS) / 2)]]
    assert read("one", "train[:3]") == texts[:3]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_format_that_was_saved_hides_no_column_and_makes_no_tensors(tmp_path: Path, streaming: bool) -> None:
    """As after ``set_format`` for a loop in torch, which ``save_to_disk`` keeps."""
    import datasets

    row = {"text": "a", "input_ids": [5, 6]}
    one = datasets.Dataset.from_list([row])
    one.set_format("numpy", columns=["input_ids"])
    one.save_to_disk(tmp_path / "one")
    found = open_dataset("hf", path=tmp_path / "one", streaming=streaming)
    first = next(iter(found.rows(0, 0))) if streaming else found.row(0)
    assert {key: first[key] for key in row} == row


@pytest.mark.parametrize("streaming", [False, True])
def test_objects_have_no_keys_of_other_rows(tmp_path: Path, streaming: bool) -> None:
    import datasets
    import pyarrow as pa

    datasets.Dataset(pa.Table.from_pylist(CALLS)).save_to_disk(tmp_path / "one")
    dataset = open_dataset("hf", path=tmp_path / "one", streaming=streaming)
    found = list(dataset.rows(0, 0)) if streaming else rows_of(dataset)
    assert [{key: row[key] for key in CALLS[0]} for row in found] == CALLS_READ


def test_a_folder_of_files_is_read_with_splits_and_slices(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for name, count in (("train", 6), ("test", 2)):
        (tmp_path / "set" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:count]))
    assert [row["prompt"] for row in rows_of(open_dataset("hf", path=tmp_path / "set", split="train[2:4]"))] == [
        row["prompt"] for row in ROWS[2:4]
    ]
    assert len(open_dataset("hf", path=tmp_path / "set", data_files=("test.jsonl",))) == 2


def test_a_file_that_is_rewritten_under_its_old_time_is_read_anew(tmp_path: Path) -> None:
    """As archives with fixed times are unpacked: ``datasets`` knows a file by its time alone."""
    file = tmp_path / "files/train.jsonl"
    file.parent.mkdir()
    found = []
    for text in ("old", "new"):
        file.write_text(json.dumps({"text": text}))
        os.utime(file, (10**9, 10**9))
        found += [open_dataset("hf", path=file.parent).row(0)["text"] for _ in range(2)]
    assert found == ["old", "old", "new", "new"]


def test_copies_of_earlier_states_of_a_file_go_once_no_process_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(file_cache, "_HELD", {})
    cache, counts = Path(datasets.config.HF_DATASETS_CACHE), []
    for text in ("one", "two", "three", "four"):
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "train.jsonl").write_text(json.dumps({"text": text}))
            os.utime(tmp_path / name / "train.jsonl", (10**9, 10**9))
            assert open_dataset("hf", path=tmp_path / name).row(0)["text"] == text
        counts.append(sum(path.is_dir() for path in cache.glob("changed-*")))
        if text != "one":  # what was read in a process that has ended
            for handle in file_cache._HELD.values():
                os.close(handle)
            file_cache._HELD.clear()
    assert counts == [2, 4, 2, 2], "one for each folder, beside those that this process still reads"
    assert len([*cache.glob("changed-*.lock")]) == 2, "locks go with what they were for"


def test_a_copy_that_another_rank_removes_first_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(file_cache, "_HELD", {})
    cache = Path(datasets.config.HF_DATASETS_CACHE)

    def remove(folder: Path) -> bool:
        shutil.rmtree(folder)
        return file_cache.remove_folder(folder)

    monkeypatch.setattr(hub, "remove_folder", remove)
    for text in ("one", "two"):
        (tmp_path / "train.jsonl").write_text(json.dumps({"text": text}))
        os.utime(tmp_path / "train.jsonl", (10**9, 10**9))
        before = set(cache.glob("changed-*/"))
        assert open_dataset("hf", path=tmp_path).row(0)["text"] == text
        own = {path for path in cache.glob("changed-*/") if path not in before}
        for handle in file_cache._HELD.values():
            os.close(handle)
        file_cache._HELD.clear()
    assert len(own) == 1


def test_rows_are_not_copied_again_where_a_file_beside_those_that_are_taken_changes(tmp_path: Path) -> None:
    """A project's folder has runs and notes, too."""
    found = []
    for name in ("train.jsonl", "notes.txt"):
        (tmp_path / name).write_text(json.dumps({"text": name}))
        os.utime(tmp_path / name, (10**9, 10**9))
        found.append(hub_files(HubConfig(path=str(tmp_path), data_files=("train.jsonl",)), "train"))
    assert found[0] == found[1] != []


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_of_other_parts_of_a_dataset_have_other_ids(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "set").mkdir()
    for name in "abc":
        (tmp_path / "set" / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    (tmp_path / "set" / "README.md").write_text(
        "---\nconfigs:\n- config_name: first\n  data_files: a.jsonl\n- config_name: second\n  data_files: b.jsonl\n---\n"
    )
    parts: list[dict[str, Any]] = [{"subset": "first"}, {"subset": "second"}]
    parts += [{"data_files": files} for files in (("a.jsonl",), ("a.jsonl", "b.jsonl"), ("a.jsonl", "c.jsonl"))]
    ids = []
    for part in parts:
        dataset = open_dataset("hf", path=tmp_path / "set", streaming=streaming, **part)
        ids.append(next(iter(dataset.rows(0, 0)))["id"] if streaming else dataset.row(0)["id"])
    assert len(set(ids)) == len(ids)
    assert ids[:3] == [f"{tmp_path}/set:{name}[train]:1" for name in ("first", "second", "a.jsonl")]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such split": (
        {"path": "saved", "split": "tests"},
        r"has no split 'tests'\. Did you mean 'test'\? It has: train, test",
    ),
    "slice of no split": ({"path": "saved", "split": "tests[:2]"}, r"has no split 'tests'\. Did you mean 'test'\?"),
    "no slice": (
        {"path": "saved", "split": "train[::2]"},
        r"/saved cannot be read as split 'train\[::2\]': Unrecognized",
    ),
    "split of one dataset": ({"path": "one", "split": "test"}, r"is one dataset without splits\. Leave dataset\.split"),
    "option of the Hub": (
        {"path": "saved", "subset": "main"},
        r"was written by save_to_disk and has no dataset\.subset",
    ),
    "empty folder": ({"path": "empty"}, r"/empty cannot be read as split 'train': .* Set dataset\.split"),
    "a file": (
        {"path": "rows.jsonl"},
        r"/rows\.jsonl is a file, .* dataset\.data_files, or read it with --dataset jsonl",
    ),
    "a script": ({"path": "script"}, r"/script cannot be read as split 'train'"),
    "damaged": ({"path": "damaged"}, r"/damaged cannot be read as split 'train'"),
    "not to be had": (
        {"path": "nobody/nothing"},
        r"nobody/nothing is no path here, and split 'train' cannot be had from the Hub",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_had_is_one_message_with_what_to_do(
    fault: str, saved_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, message = FAULTS[fault]
    monkeypatch.chdir(saved_folder)
    (saved_folder / "empty").mkdir()
    (saved_folder / "rows.jsonl").write_text('{"a": 1}\n')
    (saved_folder / "script").mkdir()
    (saved_folder / "script" / "script.py").write_text("raise SystemExit('executed')")
    (saved_folder / "damaged").mkdir()
    (saved_folder / "damaged" / "a.jsonl").write_text('{"a": 1}\n{"a"')
    given = {**options, "path": str(saved_folder / options["path"])} if "/" not in options["path"] else options
    with pytest.raises(DataError, match=message) as raised:
        open_dataset("hf", **given)
    assert "executed" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_set_without_a_path_asks_the_hub_for_its_own_name() -> None:
    with pytest.raises(DataError, match=r"openai/gsm8k is no path here"):
        open_dataset("gsm8k")
