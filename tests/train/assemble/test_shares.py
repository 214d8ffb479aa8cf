"""Runs on a token cache behind an address: the same figures as on its folder, on one rank and two, and after a resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mt_core.errors import DataError
from mt_tools.cli.data import main as mt_data
from mt_train import train
from mt_train.cli.train import main as mt_train
from mt_train.data import chunks

SHAPE = {"n_layers": 1, "dim": 32, "n_heads": 2, "n_kv_heads": 1}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 10 chunks, and what ``mt-data build`` copied to an address; no trace of it is left where it was made."""
    folder = tmp_path_factory.mktemp("bucket")
    rows = ({"text": f"row {number} " + "of some words " * (number % 7)} for number in range(80))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", 8)
        patch.setenv("MT_CACHE", str(folder / "made"))
        assert mt_data(["build", *words(folder), "--data.cache", f"file://{folder}/there"]) == 0
        assert mt_data(["build", *words(folder), "--data.cache", str(folder / "here")]) == 0
    shutil.rmtree(folder / "made")
    assert len(list((folder / "there").glob("*/chunk-*"))) == 11  # ten to train on, and one that is held out
    return folder


def words(folder: Path) -> list[str]:
    shape = [word for key, value in SHAPE.items() for word in (f"--model.{key.replace('_', '-')}", str(value))]
    keys = ["--data.eval", "4", "--data.batching", "packing", "--data.max-len", "120", "--data.workers", "1"]
    return ["--model", "llama", *shape, "--dataset", "jsonl", "--dataset.path", str(folder / "rows.jsonl"), *keys]


def raw(folder: Path, cache: str, steps: int = 6) -> dict[str, Any]:
    return {
        "model": {"name": "llama", **SHAPE},
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "train": {"steps": steps, "micro_batch_size": 2, "sequence_len": 128},
        "data": {"eval": 4, "batching": "packing", "max_len": 120, "workers": 1, "cache": cache},
        "eval": {"every_steps": 3, "samples": 0},
        "checkpoint": {"every_steps": 3, "keep_last": 9},
    }


def figures(run: Path) -> list[tuple[Any, ...]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(each.get("step"), each.get("loss"), each.get("eval_loss"), each.get("grad_norm")) for each in records]


def test_a_run_has_the_figures_of_a_cache_on_a_disk_and_so_has_its_resume(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "copies"))
    train(raw(bucket, str(bucket / "here")), output=tmp_path / "disk")
    train(raw(bucket, f"file://{bucket}/there"), output=tmp_path / "address")
    expected = figures(tmp_path / "disk")
    assert [each[0] for each in expected] == [1, 2, 3, 4, 5, 6]
    assert figures(tmp_path / "address") == expected
    shutil.rmtree(tmp_path / "copies/chunks")  # another machine
    train({}, resume=str(tmp_path / "address/checkpoints/step-00000003"))
    again = {each[0]: each for each in figures(tmp_path / "address")}
    assert again == {each[0]: each for each in expected}
    kept = {path.name for path in (tmp_path / "copies").iterdir()}
    # The hash of a file is kept only where its time of change has passed.
    assert kept - {"hashes"} == {"chunks"}, "something was encoded here"


def test_two_ranks_share_the_chunks_and_have_the_figures_of_a_disk(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "copies"))
    keys = ["--train.steps", "3", "--train.micro-batch-size", "1", "--train.sequence-len", "128", "--eval.samples", "0"]
    for name, cache in (("disk", str(bucket / "here")), ("address", f"file://{bucket}/there")):
        line = [*words(bucket), *keys, "--data.cache", cache, "--output", str(tmp_path / name)]
        assert mt_train([*line, "--nproc-per-node", "2"]) == 0
    assert figures(tmp_path / "address") == figures(tmp_path / "disk")


def test_rows_whose_cache_is_not_there_are_refused_with_what_differs(bucket: Path, tmp_path: Path) -> None:
    other = raw(bucket, f"file://{bucket}/there")
    other["data"]["max_len"] = 100
    with pytest.raises(
        DataError, match=r"there has no token cache .*; of 2 that are there .* is of another .*data\.max_len"
    ):
        train(other, output=tmp_path / "run")


def test_parts_and_cleaning_take_folders_alone(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{bucket}/there"
    for words_of_part in (["--part", "0/2"], ["--finish"]):
        assert mt_data(["build", *words(bucket), "--data.cache", url, *words_of_part]) == 2
        assert "parts are encoded in a folder that machines share" in capsys.readouterr().err
    assert mt_data(["clean", "--data.cache", url]) == 2
    assert "removes nothing behind an address" in capsys.readouterr().err
    assert mt_data(["build", *words(bucket), "--data.cache", "s3://user:hunter22hunter@bucket/x"]) == 2
    assert "hunter22" not in (said := capsys.readouterr().err)
    assert "data.cache: looks like a secret" in said
