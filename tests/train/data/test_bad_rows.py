"""Whatever is wrong with rows or the data section ends ``mt-train`` with one message: file and line, or the key, and the remedy.

What rows of each format may have is a table in ``tests/faults/test_bad_rows.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt_core import Sample
from mt_core.errors import DataError
from mt_core.nn import TokenObjective
from mt_core.plugins.host import PluginHost
from mt_train.assemble.data import RunData, build_tokenizer, check_data
from mt_train.assemble.parts import Parts
from mt_train.cli.train import main
from mt_train.data.lengths import Lengths
from mt_train.data.measures import measure
from mt_train.data.samples import EncodedSamples
from mt_train.plugins.resolve import resolve

LLAMA = ("--model", "llama", "--output", "none")
SFT = (*LLAMA, "--objective", "sft", "--dataset", "jsonl", "--dataset.path")
GOOD = [{"prompt": f"q{number} ", "response": f"a{number}"} for number in range(8)]


@dataclass(frozen=True)
class Case:
    """What comes after the good rows, the words of the command line, what the message has to contain, and the exit code."""

    name: str
    rows: tuple[object, ...]
    options: tuple[str, ...]
    says: tuple[str, ...]
    code: int = 1


ROWS = [
    Case("a field is missing", ({"prompt": "q"},), (), ("rows.jsonl:9: no field 'response'", "data.columns")),
    Case(
        "a renamed field is misspelt",
        (),
        ("--data.columns", "{prompt: promt}"),
        ("rows.jsonl:1: data.columns maps 'prompt' to 'promt'", "Did you mean 'prompt'?"),
    ),
    Case(
        "the place of a row as its text",
        (),
        ("--data.columns", "{prompt: id}"),
        ("rows.jsonl:1: data.columns names 'id', which is the place of a row",),
    ),
    Case(
        "nothing but the stop token left",
        ({"prompt": "q" * 300, "response": "a" * 9},),
        ("--data.truncation", "right", "--data.strict"),
        ("1 × data.truncation leaves nothing trained but the stop token", "1 of 9 rows were dropped"),
    ),
    Case(
        "strict",
        (GOOD[0], {"prompt": "q", "response": ""}, GOOD[1]),
        ("--data.strict",),
        ("data.strict is on", "2 faults", "1 × 'response' is empty", "2 of 10 rows are duplicates", "rows.jsonl:9"),
    ),
    Case(
        "no file to evaluate on",
        (),
        ("--data.eval", "none.jsonl"),
        ("data.eval=none.jsonl: ", "none.jsonl does not exist"),
    ),
    Case(
        "an empty file to evaluate on", (), ("--data.eval", "empty.jsonl"), ("data.eval=empty.jsonl: ", "has no rows")
    ),
    Case("a bad row to evaluate on", (), ("--data.eval", "bad.jsonl"), ("bad.jsonl:2: no field 'response'",)),
    Case(
        "no row left to evaluate on",
        (),
        ("--data.eval", "void.jsonl"),
        ("no row is left to evaluate on: 1 read, dropped 1 × 'response' is empty (void.jsonl:1)",),
    ),
]
"""Faults of rows; all but ``options`` decide what is in the file."""

KEYS = [
    Case("unknown truncation", (), ("--data.truncation", "leftt"), ("data.truncation", "'left'", "got 'leftt'"), 2),
    Case(
        "no room for an answer",
        (),
        ("--data.max-source-len", "256"),
        ("max_source_len=256 leaves no room for an answer in max_len=256", "set max_source_len to 255 or less"),
        2,
    ),
    Case(
        "an answer longer than a sample",
        (),
        ("--data.max-target-len", "300"),
        ("max_target_len=300", "max_len=256", "leave it out"),
        2,
    ),
    Case(
        "a limit that nothing keeps",
        (),
        ("--data.max-source-len", "9", "--data.truncation", "split"),
        ("max_source_len", "truncation=split", "leave out max_source_len"),
        2,
    ),
    Case("a length of one token", (), ("--data.max-len", "1"), ("data.max-len", "greater than 1"), 2),
    Case("no rows wanted", (), ("--data.read-rows", "0"), ("data.read-rows", "greater than 0"), 2),
    Case("bad rows that are no number", (), ("--data.max-bad-rows", "few"), ("data.max-bad-rows", "got 'few'"), 2),
    Case("neither error nor skip", (), ("--data.on-bad-row", "ignore"), ("data.on-bad-row", "'skip'"), 2),
    Case("strict that is no switch", (), ("--data.strict", "very"), ("data.strict", "boolean"), 2),
    Case("a negative share", (), ("--data.eval", "-0.1"), ("data.eval", "greater than 0", "got -0.1", "none"), 2),
    Case(
        "one row and a half",
        (),
        ("--data.eval", "1.5"),
        (
            "data.eval",
            "1.5 is neither a share below 1 nor",
        ),
        2,
    ),
    Case("a share that is true", (), ("--data.eval", "true"), ("data.eval", "a path or none is needed, got True"), 2),
    Case("a share that is a list", (), ("--data.eval", "[1]"), ("data.eval", "a path or none is needed, got [1]"), 2),
    Case("a share that is empty", (), ("--data.eval", "''"), ("data.eval", "a path or none is needed, got ''"), 2),
    Case(
        "a path for rows without one",
        (),
        ("--dataset", "demo", "--data.eval", "a.jsonl"),
        ("data.eval: 'a.jsonl' is a path", "dataset demo has no option path", "--data.eval"),
        2,
    ),
]
"""Faults of the section itself, which are found before a row is read."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "q", "response": "a"}\n{"prompt": "q"}\n')
    (tmp_path / "void.jsonl").write_text('{"prompt": "q", "response": ""}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, *rows: object) -> None:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (*GOOD, *rows)]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("case", [*ROWS, *KEYS], ids=lambda case: case.name)
def test_a_fault_of_the_data_gets_one_message_with_its_place_and_a_remedy(
    case: Case, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "rows.jsonl", *case.rows)
    dataset = () if "--dataset" in case.options else ("--dataset", "jsonl", "--dataset.path", "rows.jsonl")
    held_out = () if "--data.eval" in case.options else ("--data.eval", "none")
    code = main([*LLAMA, "--objective", "sft", *dataset, *held_out, *case.options])
    error = capsys.readouterr().err
    assert code == case.code, error
    message = error[error.rindex("error: ") :]
    for words in case.says:
        assert words in message, (words, message)
    assert "Traceback" not in error
    assert "--debug shows where" not in message


@pytest.mark.parametrize("ids", [[1, 999, 2], [1, 259, 2]])
def test_an_id_that_the_model_does_not_have_names_its_row_and_the_size_that_does(ids: list[int]) -> None:
    parts = Parts.of(resolve({"model": {"name": "llama", "vocab_size": 259}}, PluginHost.discover()))
    samples = EncodedSamples()
    samples.add(Sample([1, 5, 2], [True] * 3, "rows.jsonl:1"))
    samples.add(Sample(ids, [True] * 3, "rows.jsonl:2"))
    measure(samples, Lengths(max_len=8, truncation="error"))
    data = RunData(build_tokenizer(parts), TokenObjective(), samples, EncodedSamples())
    with pytest.raises(DataError) as caught:
        check_data(parts.config, data)
    assert f"rows.jsonl:2: token id {ids[1]}, and the model's embedding has only 259 rows" in str(caught.value)
    assert f"--model.vocab-size {ids[1] + 1}" in str(caught.value)


def test_rows_that_do_not_fill_a_step_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "rows.jsonl")
    assert main([*SFT, "rows.jsonl", "--dry-run", "--nproc-per-node", "2", "--data.eval", "none"]) == 0
    said = capsys.readouterr().err
    assert "warning: training: 8 samples do not fill one optimizer step of 16 rows" in said
    assert "--train.micro-batch-size" in said


def test_what_the_report_warns_of_is_said_before_the_first_step_and_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "rows.jsonl", {"prompt": "q"}, {"prompt": "q", "response": ""})
    run = [*SFT, "rows.jsonl", "--data.on-bad-row", "skip", "--data.eval", "none", "--train.steps", "1"]
    run[run.index("none")] = str(folder / "run")
    assert main(run) == 0
    said = capsys.readouterr()
    assert "8 rows, 1 dropped (bad row), 1 dropped ('response' is empty)" in said.out
    warning = "training: 2 of 10 rows were dropped, more than 1% (1 × bad row, 1 × 'response' is empty)"
    assert f"warning: {warning}" in said.err
    about = json.loads((folder / "run" / "about.json").read_text())
    assert about["warnings"][0].startswith(warning)
    assert about["data"]["train"]["rows_dropped"] == {"'response' is empty": 1, "bad row": 1}
    assert about["data"]["train"]["bad_rows"][0].startswith("rows.jsonl:9: no field 'response'")
