"""mt-data inspect as it is called: what it counts, shows, writes and refuses; and which rows a run reads."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mt_tools.cli.data import main
from mt_train.cli.train import main as mt_train

Rows = list[dict[str, Any] | str]
HOSTILE = '</pre><script>alert(1)</script> [red]x[/red] \x1b[2J & "q"'
GOOD: Rows = [{"prompt": f"q{number} ", "response": f"a{number}"} for number in range(10)]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(tmp_path)

    def to_file(rows: Rows, name: str = "rows.jsonl") -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        Path(name).write_text("".join(f"{line}\n" for line in lines))

    return to_file


def inspect(*words: str) -> int:
    return main(["inspect", "--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "sft", *words])


def count_rows(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert inspect("--json", *words) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_every_row_with_what_became_of_it(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([*GOOD, {"prompt": "q", "response": ""}, {"prompt": "q"}, {"prompt": "p" * 300, "response": "r"}])
    found = count_rows(capsys, "--data.truncation", "drop", "--data.eval", "none", code=1)
    assert found["rows_read"] == 13
    assert found["rows_kept"] == 10
    assert found["rows_dropped"] == {"'response' is empty": 1, "bad row": 1, "longer than data.max_len": 1}
    assert found["tokens_total"] == sum(len(row["prompt"]) + len(row["response"]) + 2 for row in GOOD)  # type: ignore[index]
    assert found["tokens_trained"] == sum(len(row["response"]) + 1 for row in GOOD)  # type: ignore[index]
    assert found["places"]["longer than data.max_len"] == ["rows.jsonl:13"]
    assert found["bad_rows"][0].startswith("rows.jsonl:12: no field 'response'")
    assert found["model"] is None


def test_the_whole_is_the_sum_of_the_splits(write: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    write(GOOD)
    found = count_rows(capsys, "--data.eval", "3")
    assert [found["splits"][name]["rows_read"] for name in ("train", "held_out")] == [7, 3]
    assert (found["rows_read"], found["rows_kept"], found["samples"]) == (10, 10, 10)


def test_bad_rows_end_it_as_they_would_end_a_training_unless_they_are_skipped(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([*GOOD, {"prompt": "q"}, "{"])
    assert inspect("--data.eval", "none") == 1
    said = capsys.readouterr()
    assert "rows read" in said.out
    assert (
        "error: 2 bad rows, which stop mt-train; repair them, or pass over them with --data.on-bad-row skip" in said.err
    )
    assert "rows.jsonl:11: no field" in said.err
    assert "rows.jsonl:12: " in said.err
    assert inspect("--data.eval", "none", "--data.on-bad-row", "skip") == 0
    assert inspect("--data.eval", "none", "--data.on-bad-row", "error") == 1
    assert capsys.readouterr().err.rsplit("error: ", 1)[1].startswith("rows.jsonl:11")


def test_strict_shows_the_report_and_then_fails(write: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    write([*GOOD, *GOOD])
    assert inspect("--data.strict", "--data.eval", "none") == 1
    said = capsys.readouterr()
    assert "10 of 20 rows are duplicates" in said.out
    assert "error: data.strict is on, and the data has 1 faults" in said.err


def test_where_no_row_is_left_the_report_says_why(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([{"prompt": "q", "response": ""}] * 3)
    found = count_rows(capsys, "--data.eval", "none", code=1)
    assert (found["rows_read"], found["rows_kept"], found["examples"]) == (3, 0, [])
    assert inspect("--data.eval", "none") == 1


def test_the_terminal_shows_counts_lengths_and_examples_and_obeys_no_text(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([{"prompt": HOSTILE, "response": "yes"}, *GOOD])
    assert inspect("--data.eval", "none", "--examples", "1") == 0
    out = capsys.readouterr().out
    assert re.search(r"rows read +11", out)
    assert re.search(r"5–8 +10 +█", out)
    assert '<bos></pre><script>alert(1)</script> [red]x[/red] ␛[2J & "q"«yes<eos>»' in out
    assert "\x1b" not in out


def test_a_terminal_gets_the_trained_part_in_colour(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(GOOD)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert inspect("--data.eval", "none", "--examples", "1") == 0
    shown = capsys.readouterr().out.replace("\x1b[0m\x1b[1;32m", "")
    assert "\x1b[34m<bos>\x1b[0mq0 \x1b[1;32m«a0\x1b[0m\x1b[34m<eos>»\x1b[0m" in shown


class Reader(HTMLParser):
    """Tags that are never closed, what is marked, and what would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.marked: list[str] = []
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for key, value in attrs if key in ("src", "href", "srcset", "style")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "mark" in self.open:
            self.marked.append(data)
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def test_the_page_is_whole_escaped_and_fetches_nothing(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([{"prompt": HOSTILE, "response": "<b>yes</b>"}, *GOOD, {"prompt": HOSTILE}])
    assert inspect("--data.eval", "none", "--html", "page.html", "--examples", "1") == 1
    assert "written: page.html" in capsys.readouterr().err
    text = Path("page.html").read_text()
    page = Reader(text)
    assert page.open == []
    assert page.marked == ["<b>yes</b>", "<eos>"]
    assert page.scripts == []
    assert page.addresses == []
    assert "default-src 'none'" in text
    assert "rows.jsonl:12: no field" in html.unescape(text)
    assert inspect("--data.eval", "none", "--html", "page.html", "--data.on-bad-row", "skip") == 0, "its own page"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "mt-data needs one of its commands: inspect"),
        (("inspct",), "mt-data has no command 'inspct'. Did you mean 'inspect'?"),
        (("inspect", "--examples", "some"), "--examples takes a number of samples from 0 to 10,000, got 'some'"),
        (("inspect", "--html", "page.txt"), "must end in .html"),
        (("inspect", "--html", "no/page.html"), "choose another --html"),
        (("inspect", "--dataset", "jsn"), "no dataset named 'jsn'. Did you mean 'jsonl'?"),
        (("inspect", "--data.max-ln", "3"), "data.max-ln: no such key. Did you mean 'max-len'?"),
        (("inspect", "--model", "lama"), "no model named 'lama'. Did you mean 'llama'?"),
        (("inspect", "--model.n-layers", "3"), "model: is required"),
        (("inspect", "--config", "none.yaml"), "cannot read the config"),
        (("inspect", "--recipe", "lorra"), "no recipe named 'lorra'. Did you mean 'lora'?"),
    ],
)
def test_a_wrong_call_is_refused(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_a_model_decides_how_long_rows_and_how_large_ids_may_be(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(GOOD)
    assert count_rows(capsys, "--model", "llama", "--data.eval", "none")["model"] == "llama"
    assert inspect("--model", "llama", "--model.vocab-size", "100") == 2
    assert inspect("--model", "llama", "--train.sequence-len", "4096") == 2
    assert count_rows(capsys, "--train.sequence-len", "4096", "--data.eval", "none")["sequence_len"] == 4096


def test_a_recipe_and_several_configs_are_laid_over_each_other_as_for_a_training(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write([*GOOD, {"prompt": "p" * 300, "response": "r"}])
    Path("one.yaml").write_text("data: {eval: none, max_len: 8, truncation: left}\n")
    Path("two.yaml").write_text("data: {max_len: 200, truncation: drop}\n")
    words = ["--data.eval", "none", "--data.max-len", "200", "--data.truncation", "drop"]
    plain = count_rows(capsys, "--data.batching", "packing", "--train.sequence-len", "512", *words)
    assert count_rows(capsys, "--recipe", "sft", "--config", "one.yaml", "--config", "two.yaml") == plain
    assert plain["rows_dropped"] == {"longer than data.max_len": 1}


def test_help_shows_the_keys_of_the_chosen_dataset_without_torch(tmp_path: Path) -> None:
    poison = "import sys; sys.modules['torch'] = None; from mt_tools.cli.data import main; main(sys.argv[1:])"
    words = ["--dataset", "jsonl", "--help"]
    shown = subprocess.run(
        [sys.executable, "-c", poison, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ},
    )
    for option in ("--dataset.path", "--data.truncation", "--data.max-bad-rows", "--examples N"):
        assert option in shown.stdout, shown.stderr
    assert "--optimizer" not in shown.stdout


# ------------------------------------------------------------------------------------------------- which rows are read


def test_only_the_first_rows_are_read(write: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    write([*GOOD[:4], "broken"])
    write([*GOOD[:5], "broken"], "other.jsonl")
    assert count_rows(capsys, "--data.read-rows", "4", "--data.eval", "none")["rows_read"] == 4
    both = count_rows(capsys, "--data.read-rows", "4", "--data.eval", "other.jsonl")
    assert [both["splits"][name]["rows_read"] for name in ("train", "held_out")] == [4, 4]
    assert count_rows(capsys, "--data.read-rows", "4", "--data.eval", "0.5")["splits"]["held_out"]["rows_read"] == 2


def test_a_file_of_its_own_is_evaluated_with_the_options_of_the_dataset(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(GOOD)
    write([{"prompt": "other ", "response": "rows"}, GOOD[0]], "other.jsonl")
    found = count_rows(capsys, "--data.eval", "other.jsonl")
    assert [found["splits"][name]["rows_kept"] for name in ("train", "held_out")] == [10, 2]
    assert found["splits"]["held_out"]["also_trained"] == 1
    assert any("1 of 2 held-out rows are also trained on" in line for line in found["warnings"])
    assert found == count_rows(capsys, "--data.eval", "other.jsonl")


def test_a_single_document_holds_out_its_end_and_has_one_begin_and_one_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text("".join(f"Sentence {number}. " for number in range(200)))
    words = ["--dataset", "text", "--dataset.path", str(tmp_path / "book.txt"), "--json"]
    assert main(["inspect", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows_read"], found["rows_split"], found["begin_tokens"]) == (1, 1, {"1": 1})
    assert found["rows_without_stop"] == 0
    assert found["splits"]["held_out"]["samples"] > 0
    assert found["warnings"] == []


@pytest.mark.parametrize("part", ["2e-1", "0.2"])
def test_a_share_is_a_share_however_it_is_written(
    part: str, write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(GOOD)
    assert count_rows(capsys, "--data.eval", part)["splits"]["held_out"]["rows_read"] == 2


def test_training_evaluates_the_file_and_resolves_the_same_again(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(GOOD)
    write(GOOD[:3], "other.jsonl")
    words = ["--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "sft", "--data.eval", "other.jsonl"]
    assert mt_train(["--model", "llama", *words, "--train.steps", "1", "--output", "run"]) == 0
    assert "held out   3 rows" in capsys.readouterr().out
    assert "eval: other.jsonl" in Path("run/run.yaml").read_text()


BUILD = ["build", "--model", "llama", "--dataset", "jsonl", "--dataset.path", "rows.jsonl", "--objective", "sft"]
BUILD += ["--data.cache", "cache", "--data.workers", "1", "--train.sequence-len", "64"]


def test_parts_of_a_cache_are_finished_as_what_one_build_makes(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(GOOD * 500)
    assert main([*BUILD, "--part", "1/2"]) == 0
    assert "part       1 of 2 is encoded" in capsys.readouterr().out
    assert main([*BUILD, "--finish"]) == 1
    assert "2 of 3 chunks are missing" in capsys.readouterr().err
    assert main([*BUILD, "--finish", "--data.max-len", "63"]) == 1
    assert "building is of another rules.max_len, data.max_len\n" in capsys.readouterr().err
    for words in (["--part", "0/2"], ["--finish"], []):
        assert main([*BUILD, *words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-6:-3] == said[-3:]
    assert said[-3].startswith("training   4,750 rows")
    assert main([*BUILD, "--part", "0/2"]) == 0, "which has nothing to do"
    finished = {path.name: path.read_bytes() for path in Path("cache").glob("*/chunk-*")}
    shutil.rmtree("cache")
    assert main(BUILD) == 0
    assert {path.name: path.read_bytes() for path in Path("cache").glob("*/chunk-*")} == finished


@pytest.mark.parametrize("text", ["2/2", "1", "-1/2", "0/0", "a/b", "0/2/3", "", "1/"])
def test_a_part_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BUILD, f"--part={text}"]) == 2
    assert "--part takes I/N, part I of N counted from 0" in capsys.readouterr().err


def test_a_part_does_not_finish(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BUILD, "--part", "0/2", "--finish"]) == 2
    assert "give one of the two" in capsys.readouterr().err


def test_the_slurm_script_builds_a_part_for_each_task_and_finishes_without_an_array(tmp_path: Path) -> None:
    """The command is stood for by one that prints its words."""
    (tmp_path / "mt-data").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "mt-data").chmod(0o755)
    script = Path(__file__).parents[3] / "examples/slurm_build.sh"
    cases: list[tuple[dict[str, str], str]] = [
        (
            {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "7"},
            "build --data.workers 1 --part 3/8 --config run.yaml",
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "5", "PARTS": "8"},
            "build --data.workers 1 --part 3/8 --config run.yaml",
        ),
        ({"SLURM_CPUS_PER_TASK": "4"}, "build --data.workers 4 --finish --config run.yaml"),
    ]
    for told, words in cases:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **told}
        done = subprocess.run(
            ["bash", str(script), "--config", "run.yaml"], env=environment, capture_output=True, text=True
        )
        assert (done.stdout.strip(), done.returncode) == (words, 0), done.stderr
