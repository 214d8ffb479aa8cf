"""Rows of each format go through the token cache, encoded by processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dataset_files import ROWS, delimited_bytes, json_lines

from mt_conformance import hermetic_host, tiny
from mt_plugin_datasets import plugin
from mt_train.assemble.data import RunData, build_data
from mt_train.assemble.parts import Parts
from mt_train.data import chunks
from mt_train.plugins.resolve import resolve

HOST = hermetic_host(plugin, tiny)


def test_cached_rows_of_each_format_are_those_in_memory_and_are_not_read_again(
    dataset_case: tuple[str, Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path, options = dataset_case
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 2)

    def run(cache: str | None) -> RunData:
        keys = {"cache": cache, "workers": 2, "eval": 1, "columns": {} if name == "tokens" else {"text": "response"}}
        raw = {"model": {"name": "kit-tiny", "vocab_size": 259}, "data": keys}
        return build_data(Parts.of(resolve({**raw, "dataset": {"name": name, "path": str(path), **options}}, HOST)))

    fresh = run(None)  # opens the file in this process before others are forked from it
    made_now = run(str(tmp_path / "tokens"))
    monkeypatch.setattr(Parts, "rows", lambda *given: pytest.fail("the source is opened"))
    again = run(str(tmp_path / "tokens"))
    assert len(fresh.train) > 4, "several chunks"
    for other in (made_now, again):
        assert other.train.fingerprint() == fresh.train.fingerprint()
        assert other.train.report == fresh.train.report
        assert other.held_out.report == fresh.held_out.report


def hub_folder(folder: Path) -> dict[str, Any]:
    (folder / "set").mkdir()
    (folder / "set" / "train.jsonl").write_bytes(json_lines())
    return {"name": "hf", "path": str(folder / "set")}


def saved_folder(folder: Path) -> dict[str, Any]:
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "set")
    return {"name": "hf", "path": str(folder / "set")}


def published(folder: Path) -> dict[str, Any]:
    rows = [{"question": f"{n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(12)]
    (folder / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "gsm8k", "path": str(folder / "gsm8k.jsonl")}


def mix(folder: Path) -> dict[str, Any]:
    (folder / "a.csv").write_bytes(delimited_bytes(","))
    inner = {
        "name": "concat",
        "sources": [published(folder), {"name": "csv", "path": str(folder / "a.csv"), "weight": 2}],
    }
    return {"name": "concat", "sources": [hub_folder(folder), {**inner, "mix": "rows"}]}


MADE: dict[str, Callable[[Path], dict[str, Any]]] = {
    "hf, a folder": hub_folder,
    "hf, save_to_disk": saved_folder,
    "a set": published,
    "concat of hf and a concat": mix,
}


@pytest.mark.parametrize("kind", MADE)
def test_rows_that_come_from_other_files_are_cached_until_one_of_these_changes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "prepared")
    datasets.disable_progress_bars()
    options, opened, rows = MADE[kind](tmp_path), [], Parts.rows

    def counted(self: Parts, *given: Any) -> Any:
        opened.append(given)
        return rows(self, *given)

    monkeypatch.setattr(Parts, "rows", counted)

    def run(cache: str | None = str(tmp_path / "tokens")) -> RunData:
        raw = {"model": {"name": "kit-tiny", "vocab_size": 259}, "objective": "sft", "dataset": options}
        data = {"cache": cache, "workers": 1, "eval": 2, "max_len": 120}
        opened.clear()
        return build_data(Parts.of(resolve({**raw, "data": data, "train": {"sequence_len": 120}}, HOST)))

    fresh = run(None)
    run()
    cached = run()
    assert not opened
    assert cached.train.fingerprint() == fresh.train.fingerprint()
    assert cached.train.row_ids[:] == fresh.train.row_ids[:]
    assert cached.held_out.fingerprint() == fresh.held_out.fingerprint()
    change(tmp_path)
    assert run().train.fingerprint() != fresh.train.fingerprint()
    assert opened


def change(folder: Path) -> None:
    """One letter of one row."""
    for path in (*folder.glob("*.jsonl"), *folder.glob("set/*.jsonl")):
        path.write_bytes(path.read_bytes().replace(b"7 + ", b"8 + "))
        return
    import datasets

    other = [{**row, "response": row["response"].replace("é", "è")} for row in ROWS]
    datasets.Dataset.from_list(other).save_to_disk(folder / "other")
    for path in (folder / "other").iterdir():
        path.replace(folder / "set" / path.name)


def test_the_same_files_in_other_sources_of_a_mix_are_encoded_anew(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name}{n}"}) + "\n" for n in range(9)))

    def run(*patterns: str, cache: str | None = str(tmp_path / "tokens")) -> RunData:
        sources = [
            {"name": "jsonl", "path": str(tmp_path / each), "weight": 3 - 2 * n} for n, each in enumerate(patterns)
        ]
        raw = {"model": {"name": "kit-tiny", "vocab_size": 259}, "data": {"cache": cache, "workers": 1, "eval": 1}}
        dataset = {"name": "concat", "mix": "rows", "sources": sources}
        return build_data(Parts.of(resolve({**raw, "dataset": dataset}, HOST)))

    run("[ab].jsonl", "c.jsonl")
    fresh, cached = (run("a.jsonl", "[bc].jsonl", **given) for given in ({"cache": None}, {}))
    assert cached.train.row_ids[:] == fresh.train.row_ids[:]


def test_other_labels_beside_the_rows_of_a_set_are_encoded_anew(tmp_path: Path) -> None:
    rows = [{"goal": f"To dry {n}", "sol1": "wipe", "sol2": "rain"} for n in range(4)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = []
    for labels in ("0\n1\n0\n1\n", "1\n0\n1\n0\n"):
        (tmp_path / "train-labels.lst").write_text(labels)
        dataset = {"name": "piqa", "path": str(tmp_path / "train.jsonl")}
        data = {"cache": str(tmp_path / "tokens"), "workers": 1, "eval": None}
        raw = {"model": {"name": "kit-tiny", "vocab_size": 259}, "objective": "sft", "data": data}
        found.append(build_data(Parts.of(resolve({**raw, "dataset": dataset}, HOST))).train.fingerprint())
    assert found[0] != found[1]


def test_a_mix_with_a_part_that_names_no_files_is_not_cached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = {"name": "concat", "sources": [published(tmp_path), {"name": "demo", "columns": {"response": "text"}}]}
    data = {"cache": str(tmp_path / "tokens"), "on_bad_row": "skip", "truncation": "split"}
    build_data(Parts.of(resolve({"model": {"name": "kit-tiny"}, "dataset": dataset, "data": data}, HOST)))
    assert "data.cache is of no use: dataset 'concat' names no files" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()
