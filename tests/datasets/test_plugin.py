"""What the plugin offers, and a run on each kind of source."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated_types import Ge, Gt, MinLen

import mt_core
import mt_core.files
import mt_plugin_datasets
from mt_plugin_datasets import plugin
from mt_train.cli.train import main

SOURCES = sorted(Path(mt_plugin_datasets.__file__).parent.rglob("*.py"))


def test_every_option_is_described_and_bounded_and_every_component_has_summary_and_source() -> None:
    for component in plugin.mt_datasets():
        assert component.summary
        assert component.source.startswith("https://")
        for name, field in component.config.model_fields.items():
            assert field.description, f"{component.name}.{name}"
            if "Literal" not in str(field.annotation) and field.annotation is not bool:
                assert any(isinstance(mark, Ge | Gt | MinLen) for mark in field.metadata), f"{component.name}.{name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_public_names_of_the_core_are_used(path: Path) -> None:
    parts: list[Any] = [mt_core, mt_core.files]
    public = {part.__name__: set(part.__all__) for part in parts}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mt_core":
            assert {alias.name for alias in node.names} <= public[node.module or ""], node.module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"prompt": f"{n} + 1 = ", "response": str(n + 1)} for n in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("q,a\n" + "".join(f'"{row["prompt"]}",{row["response"]}\n' for row in rows))
    ids = [{"input_ids": list(range(n, n + 9)), "labels": [-100] * 4 + list(range(n + 4, n + 9))} for n in range(12)]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ids))
    (tmp_path / "gsm8k.jsonl").write_text(
        "".join(json.dumps({"question": "1?", "answer": "#### 1"}) + "\n" for _ in rows)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


MIX = "[{name: parquet, path: a.parquet, weight: 2}, {name: csv, path: a.csv, columns: {prompt: q, response: a}}]"
RUNS = {
    "csv": (["--dataset.path", "a.csv", "--data.columns", "{prompt: q, response: a}"], "11 rows"),
    "parquet": (["--dataset.path", "a.parquet", "--dataset.eval-path", "a.parquet"], "12 rows"),
    "jsonl": (["--dataset.path", "ids.jsonl"], "11 rows, 99 tokens, 55.6% trained on"),
    "gsm8k": (["--dataset.path", "gsm8k.jsonl"], "11 rows"),
    "concat": (["--dataset.sources", MIX, "--dataset.mix", "rows"], "35 rows"),  # 24 + 12 but the one that is held out
}


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_on_it(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = RUNS[name]
    small = [
        "--model",
        "kit-tiny",
        "--model.n-layers",
        "1",
        "--objective",
        "sft",
        "--train.steps",
        "1",
        "--output",
        "none",
    ]
    assert main([*small, "--dataset", name, *words]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert f"training   {said}" in shown, shown


FAULTS = {
    "a faulty row": (
        ["csv", "--dataset.path", "bad.csv"],
        1,
        "error: bad.csv:3: 1 fields, and there are 2 columns: q, a.",
    ),
    "a missing file": (
        ["parquet", "--dataset.path", "x.parquet"],
        1,
        "/x.parquet does not exist. Name a file or folder that does",
    ),
    "an id beyond the embedding": (
        ["jsonl", "--dataset.path", "large.jsonl"],
        1,
        "large.jsonl:1: token id 99999, and the model",
    ),
    "marks that are one": (
        ["csv", "--dataset.path", "bad.csv", "--dataset.delimiter", "'\"'"],
        2,
        "delimiter and quote are both '\"'",
    ),
    "an option of another place": (["gsm8k", "--dataset.sha1", "a" * 40], 2, "sha1 belongs to files; set path"),
}


@pytest.mark.usefixtures("kit_model")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_a_run_with_one_message(fault: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.csv").write_text("q,a\n1,2\n3\n4,5\n")
    (folder / "large.jsonl").write_text('{"input_ids": [1, 99999, 3]}\n' * 3)
    words, code, message = FAULTS[fault]
    columns = ["--data.columns", "{prompt: q, response: a}"] if words[0] == "csv" else []
    assert (
        main(["--model", "kit-tiny", "--objective", "sft", "--output", "none", "--dataset", *words, *columns]) == code
    )
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1, printed
