"""When tokens come from the cache, and what makes them be encoded anew."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mt_core.errors import DataError
from mt_core.files import JsonRows
from mt_core.plugins.host import PluginHost
from mt_tools.cli.data import main as mt_data
from mt_train.assemble import encoder as encoder_module
from mt_train.assemble.data import RunData, build_data
from mt_train.assemble.parts import Parts
from mt_train.plugins.resolve import resolve

Run = Callable[..., RunData]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Indices of the rows that are read."""
    seen: list[int] = []
    row = JsonRows.row
    monkeypatch.setattr(JsonRows, "row", lambda self, index: seen.append(index) or row(self, index))
    return seen


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write(path, 40)
    return path


def write(path: Path, count: int) -> None:
    path.write_text(
        "".join(json.dumps({"text": f"row {number} of some", "more": "x"}) + "\n" for number in range(count))
    )


@pytest.fixture
def run(tmp_path: Path, rows: Path) -> Run:
    host = PluginHost.discover()

    def built(path: Path = rows, *, limit: int | None = None, **data: Any) -> RunData:
        raw = {"model": {"name": "llama", "vocab_size": 259}, "dataset": {"name": "jsonl", "path": str(path)}}
        raw |= {"eval": {"limit": limit}}
        keys = {"cache": str(tmp_path / "tokens"), "workers": 1, "eval": 0.25} | data
        return build_data(Parts.of(resolve({**raw, "data": keys}, host)))

    return built


def test_the_second_run_reads_no_row_and_trains_on_the_same(run: Run, reads: list[int]) -> None:
    first = run()
    assert sorted(reads) == list(range(40))
    reads.clear()
    second, fresh = run(batching="padding", shuffle=False), run(cache=None)
    assert len(reads) == 40, "only the run without a cache"
    assert_same(first, second)
    assert_same(first, fresh)


def assert_same(one: RunData, other: RunData) -> None:
    for ours, theirs in ((one.train, other.train), (one.held_out, other.held_out)):
        assert ours.fingerprint() == theirs.fingerprint()
        assert ours.row_ids[:] == theirs.row_ids[:]
        assert ours.report == theirs.report


def test_duplicates_and_rows_of_both_parts_are_found_in_cached_rows(run: Run, rows: Path, reads: list[int]) -> None:
    rows.write_text(rows.read_text() * 2)
    run()
    reads.clear()
    cached = run()
    assert not reads
    assert cached.train.report.duplicates > 0
    assert cached.held_out.report.also_trained > 0
    assert_same(cached, run(cache=None))


def test_parts_that_are_held_out_by_other_rules_are_never_taken_for_each_other(run: Run, rows: Path) -> None:
    other = rows.with_name("other.jsonl")
    write(other, 50)
    for _ in range(2):
        for wanted in (0.25, 0.5, 7, None, str(other)):
            assert_same(run(eval=wanted), run(eval=wanted, cache=None))


def test_a_limit_of_evaluated_rows_has_its_own_place_in_the_cache_and_leaves_the_training_rows_there(
    run: Run, rows: Path, reads: list[int]
) -> None:
    other = rows.with_name("other.jsonl")
    write(other, 50)
    for wanted in (0.25, str(other)):
        whole = run(eval=wanted)
        reads.clear()
        few = run(eval=wanted, limit=3)
        assert len(reads) == 3, "no training row is read again"
        assert few.train.fingerprint() == whole.train.fingerprint()
        assert_same(few, run(eval=wanted, limit=3, cache=None))
        assert len(run(eval=wanted, limit=99).held_out) == len(whole.held_out)
    assert [Path(each).name for each in few.held_out.row_ids] == [f"other.jsonl:{number}" for number in (1, 2, 3)]
    assert run(eval=0.25, limit=3).held_out.fingerprint() == run(eval=3).held_out.fingerprint()


def test_another_byte_of_the_file_of_data_eval_encodes_anew(run: Run, rows: Path, reads: list[int]) -> None:
    other = rows.with_name("other.jsonl")
    write(other, 5)
    assert len(run(eval=str(other)).held_out) == 5
    reads.clear()
    assert len(run(eval=str(other)).held_out) == 5
    assert not reads
    write(other, 6)
    assert len(run(eval=str(other)).held_out) == 6


def test_the_hash_of_the_training_file_is_not_asked_of_the_file_of_data_eval(rows: Path) -> None:
    other = rows.with_name("other.jsonl")
    write(other, 5)
    dataset = {"name": "jsonl", "path": str(rows), "sha256": hashlib.sha256(rows.read_bytes()).hexdigest()}
    raw = {
        "model": {"name": "llama", "vocab_size": 259},
        "dataset": dataset,
        "data": {"eval": str(other), "cache": None},
    }
    data = build_data(Parts.of(resolve(raw, PluginHost.discover())))
    assert (len(data.train), len(data.held_out)) == (40, 5)


def test_two_places_of_rows_for_evaluation_are_one_too_many(rows: Path) -> None:
    dataset = {"name": "jsonl", "path": str(rows), "eval_path": str(rows)}
    raw = {
        "model": {"name": "llama", "vocab_size": 259},
        "dataset": dataset,
        "data": {"eval": str(rows), "cache": None},
    }
    with pytest.raises(DataError, match=r"^data\.eval=.* is a path, and dataset 'jsonl' has rows .* Keep one"):
        build_data(Parts.of(resolve(raw, PluginHost.discover())))


USELESS = {
    "packing": ({"packing": "sequential", "batching": "padding"}, "with data.batching=padding; it belongs to packing"),
    "pad_multiple": ({"pad_multiple": 4, "batching": "packing"}, "with data.batching=packing; it belongs to padding"),
    "group_by_length": ({"group_by_length": True, "batching": "packing"}, "with data.batching=packing; it belongs to"),
    "max_bad_rows": ({"max_bad_rows": 5}, "with data.on_bad_row=error; it belongs to skip"),
    "shuffle_buffer": ({"shuffle_buffer": 5}, ": the dataset is no stream"),
}


@pytest.mark.parametrize("key", USELESS)
def test_a_key_that_changes_nothing_is_told_of(key: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    keys, why = USELESS[key]
    run(**keys)
    assert f"notice: data.{key} is of no use{' ' if why.startswith('with') else ''}{why}" in capsys.readouterr().err
    run(**{name: value for name, value in keys.items() if name != key})
    assert "of no use" not in capsys.readouterr().err


def test_another_path_in_data_eval_leaves_the_training_part_and_other_paths_as_they_are(
    run: Run, rows: Path, reads: list[int]
) -> None:
    first, second = rows.with_name("first.jsonl"), rows.with_name("second.jsonl")
    write(first, 5)
    write(second, 7)
    run(eval=None)
    for path, count in ((first, 5), (second, 7), (first, 0)):
        reads.clear()
        held_out = run(eval=str(path)).held_out
        assert len(reads) == count, "the held-out rows, the first time"
        assert {row_id.rpartition(":")[0] for row_id in held_out.row_ids[:]} == {str(path)}
    reads.clear()
    assert len(run(second, eval=str(first)).train) == 7
    assert not reads, "rows that were held out before are trained on"


def test_what_was_encoded_with_bad_rows_skipped_is_an_error_where_they_are_one(
    run: Run, rows: Path, reads: list[int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = rows.read_text().splitlines()
    lines[7], lines[21] = '{"texts": 1}', '{"text": 5}'
    rows.write_text("\n".join(lines))
    with pytest.raises(DataError) as fresh:
        run(cache=None, eval=None)
    words = ["--dataset", "jsonl", "--dataset.path", str(rows), "--data.eval", "none"]
    words += ["--data.cache", str(tmp_path / "tokens"), "--data.workers", "1"]
    assert mt_data(["inspect", *words]) == 1
    assert "2 bad rows, which stop mt-train" in capsys.readouterr().err
    reads.clear()
    with pytest.raises(DataError) as cached:
        run(eval=None)
    assert str(cached.value) == str(fresh.value)
    assert f"{rows}:8: " in str(cached.value)
    assert len(run(eval=None, on_bad_row="skip", max_bad_rows=2).train) == 38
    with pytest.raises(DataError, match=r"2 bad rows exceed data\.max_bad_rows=1"):
        run(eval=None, on_bad_row="skip", max_bad_rows=1)
    assert not reads, "what `mt-data inspect` encoded is used by all of them"


def test_a_file_of_data_eval_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    for cache in (None, str(tmp_path / "tokens")):
        with pytest.raises(DataError, match=r"^data\.eval=nowhere: .*nowhere does not exist"):
            run(eval="nowhere", cache=cache)


def test_a_cache_that_cannot_be_written_is_told_with_the_remedy_and_left_alone_where_nobody_asked_for_it(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(rows, (0, 0))  # old enough for its hash to be remembered
    with pytest.raises(DataError, match=r"the token cache .* cannot be written: .* Choose another folder"):
        run(cache=str(rows))
    monkeypatch.setenv("MT_CACHE", str(rows))
    monkeypatch.setattr("mt_train.assemble.encoder.AUTO_BYTES", 1)
    assert len(run(cache="auto").train) == 30
    assert "The tokens stay in memory" in capsys.readouterr().err


def test_a_long_document_is_parted_the_same_out_of_the_cache(run: Run, rows: Path, reads: list[int]) -> None:
    rows.write_text(json.dumps({"text": "many words " * 300}) + "\n")
    keys = {"eval": 0.3, "max_len": 64, "truncation": "split"}
    fresh = run(**keys, cache=None)
    assert len(fresh.held_out) > 2
    run(**keys)
    reads.clear()
    assert_same(run(**keys), fresh)
    assert not reads


@pytest.mark.parametrize(
    "change",
    [
        {"max_len": 9},
        {"truncation": "left"},
        {"max_source_len": 9, "truncation": "drop"},
        {"max_target_len": 40, "truncation": "drop"},
        {"columns": {"text": "more"}},
        {"eval": 0.5},
        {"read_rows": 40},
        {"template": "plain"},
        {"train_on": "all"},
    ],
    ids=str,
)
def test_another_key_of_the_data_section_encodes_anew(run: Run, reads: list[int], change: dict[str, Any]) -> None:
    run()
    reads.clear()
    run(**change)
    assert sorted(reads) == list(range(40))


def test_rows_are_the_same_on_another_day_where_a_template_writes_the_date(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    turns = [{"role": "user", "content": "Which day?"}, {"role": "assistant", "content": "today"}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 3)
    (tmp_path / "dated.jinja").write_text(
        "{% set day = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}{{ day }}\n"
        "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    found = []
    for day in (1, 2):
        now = datetime(2030, 1, day)
        monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda now=now: now))
        data = run(tmp_path / "chats.jsonl", cache=None, eval=None, template=str(tmp_path / "dated.jinja"), columns={})
        found.append(data)
    first, second = found
    assert first.fingerprint == second.fingerprint
    assert second.tokenizer.decode(second.train[0].ids.tolist()).startswith("26 Jul 2024\nWhich day?")


def test_another_version_of_a_library_that_reads_texts_encodes_anew(
    run: Run, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    reads.clear()
    monkeypatch.setattr("mt_train.assemble.identity.installed_version", lambda name: f"{name} of next year")
    run()
    assert len(reads) == 40


def test_another_byte_of_the_data_encodes_anew(run: Run, rows: Path, reads: list[int]) -> None:
    before = run().train.fingerprint()
    reads.clear()
    write(rows, 41)
    assert run().train.fingerprint() != before
    assert len(reads) == 41


def test_a_dataset_that_names_no_files_with_these_options_is_not_cached(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"model": {"name": "llama"}, "dataset": {"name": "jsonl", "path": str(rows)}}
    resolved = resolve({**raw, "data": {"cache": str(tmp_path / "tokens")}}, PluginHost.discover())
    offer = resolved.offers["dataset"]
    unsaid = replace(offer.component, files=lambda config, split: None)  # type: ignore[call-arg]
    resolved.offers["dataset"] = replace(offer, component=unsaid)
    assert len(build_data(Parts.of(resolved)).train) == 38
    assert "dataset 'jsonl' names no files" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


def test_a_small_source_is_never_cached_unasked(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "auto"))
    run(cache="auto")
    assert not (tmp_path / "auto").exists()
    monkeypatch.setattr(encoder_module, "AUTO_BYTES", 10)
    run(cache="auto")
    assert (tmp_path / "auto").is_dir()


def test_a_cache_that_cannot_be_written_stops_no_run_that_did_not_ask_for_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(encoder_module, "AUTO_BYTES", 10)
    assert len(run(cache="auto").train) == 30
    assert "The tokens stay in memory" in capsys.readouterr().err


def test_mt_data_build_makes_what_a_run_uses(
    run: Run, rows: Path, tmp_path: Path, reads: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "llama", "--model.vocab-size", "259", "--dataset", "jsonl", "--dataset.path", str(rows)]
    assert mt_data(["build", *words]) == 2
    assert "name a folder with --data.cache FOLDER" in capsys.readouterr().err
    assert mt_data(["build", *words, "--json"]) == 2
    assert "--json belongs to mt-data inspect" in capsys.readouterr().err
    assert mt_data(["build", "--model", "llama", "--data.cache", str(tmp_path)]) == 2
    assert "dataset 'demo' names no files" in capsys.readouterr().err
    assert mt_data(["build", *words, "--data.eval", "0.25", "--data.cache", str(tmp_path / "tokens")]) == 0
    assert "30 rows" in capsys.readouterr().out
    reads.clear()
    run()
    assert not reads


@pytest.mark.parametrize(("package", "file"), [("mt_core", "data/shapes.py"), ("mt_train", "data/encoding.py")])
def test_changed_code_of_the_core_and_of_training_encodes_anew(
    package: str, file: str, run: Run, reads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    reads.clear()
    run()
    assert reads == []
    code = import_module(package)
    copy = shutil.copytree(Path(*code.__path__), tmp_path / package)
    (copy / file).write_text((copy / file).read_text() + "\n# changed\n")
    stand_in = ModuleType(package)
    vars(stand_in).update(__path__=[str(copy)], __getattr__=partial(getattr, code))
    monkeypatch.setitem(sys.modules, package, stand_in)
    run()
    assert sorted(reads) == list(range(40))


def test_the_same_files_in_another_place_are_the_same_rows(
    run: Run, rows: Path, reads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "copies"))
    (tmp_path / "deep/er").mkdir(parents=True)
    there = Path(shutil.copy(rows, tmp_path / "deep/er"))
    first = run()
    reads.clear()
    for path in (there, f"file://{there}", tmp_path / "deep", str(tmp_path / "deep/**/*.jsonl")):
        assert run(path).train.fingerprint() == first.train.fingerprint()
    assert not reads
    other = there.rename(there.with_name("other.jsonl"))  # a dataset may read names
    run(other)
    assert len(reads) == 40
    reads.clear()
    shutil.copy(rows, tmp_path / "deep")
    run(tmp_path / "deep")
    assert len(reads) == 80


def test_a_tokenizer_in_another_place_is_the_same_and_one_whose_file_changed_is_not(
    rows: Path, reads: list[int], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"row": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "first").mkdir()
    words.save(str(tmp_path / "first/tokenizer.json"))
    copy = Path(shutil.copytree(tmp_path / "first", tmp_path / "copy"))
    host = PluginHost.discover()

    def build(path: Path) -> None:
        raw = {"model": {"name": "llama", "vocab_size": 512}, "dataset": {"name": "jsonl", "path": str(rows)}}
        raw |= {"tokenizer": {"name": "huggingface", "path": str(path)}}
        data = {"cache": str(tmp_path / "tokens"), "workers": 1, "eval": None}
        build_data(Parts.of(resolve({**raw, "data": data}, host)))

    build(tmp_path / "first")
    reads.clear()
    build(copy)
    assert not reads
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + " ")
    build(copy)
    assert len(reads) == 40
