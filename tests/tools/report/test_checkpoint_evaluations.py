"""The newest figures that mt-eval has found of each checkpoint, on the page of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.report import checkpoint_evaluations
from mt_tools.report.page import page
from mt_tools.report.run import read_run

MakeRun = Callable[..., Path]
EVIL = "</script><img src=x onerror=alert(1)>"


def rows(step: int, loss: float, on: str = "held out") -> dict[str, Any]:
    return {"model": f"step-{step:08d}", "step": step, "dataset": on, "samples": 3, "loss": loss}


def asked(step: int, accuracy: float) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "odd": "text"}
    return {"model": f"step-{step:08d}", "step": step, "evaluation": "mmlu", "figures": figures, "seconds": 2.0}


def write(run: Path, call: str, *results: dict[str, Any]) -> None:
    folder = run / "eval" / call
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"schema": 1, "results": results}))


def tables(*folders: Path) -> list[list[list[str]]]:
    """Tables of the section, as rows of cells."""
    html = page([read_run(folder, folder.name) for folder in folders])
    found = re.search(r'<section id="checkpoint-evaluations".*?</section>', html, re.DOTALL)
    return [
        [
            [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", each, re.DOTALL)
        ]
        for each in re.findall(r"<table>(.*?)</table>", found[0] if found else "", re.DOTALL)
    ]


def test_the_newest_figures_of_each_checkpoint_stand_in_the_order_of_steps(make_run: MakeRun) -> None:
    run = make_run()
    write(run, "001", rows(20, 2.0), rows(40, 1.5), asked(40, 0.25))
    write(run, "010", rows(20, 2.25), rows(20, 3.0, "news"))
    write(run, "002", rows(20, 9.0))
    assert tables(run) == [
        [
            ["Checkpoint", "samples", "loss", "in"],
            ["step-00000020", "3", "2.25", "eval/010"],
            ["step-00000040", "3", "1.5", "eval/001"],
        ],
        [["Checkpoint", "samples", "loss", "in"], ["step-00000020", "3", "3", "eval/010"]],
        [["Checkpoint", "accuracy", "in"], ["step-00000040", "0.25", "eval/001"]],
    ]


def test_checkpoints_of_several_runs_stand_in_one_table(make_run: MakeRun) -> None:
    first, second = make_run("first"), make_run("second")
    write(first, "001", rows(20, 2.0))
    write(second, "001", rows(40, 1.0))
    assert tables(first, second, make_run("third"))[0][1:] == [
        ["first step-00000020", "3", "2", "eval/001"],
        ["second step-00000040", "3", "1", "eval/001"],
    ]


def test_a_run_that_nobody_evaluated_has_no_such_section(make_run: MakeRun) -> None:
    run = make_run()
    assert tables(run) == []
    (run / "eval").write_text("no folder")
    assert tables(run) == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"results": 3}', '{"results": [3]}', '{"results": [{"model": "x"}]}', "[" * 9000]
)
def test_what_is_no_evaluation_is_a_remark_and_the_others_are_read(make_run: MakeRun, content: str) -> None:
    run = make_run()
    write(run, "001", rows(20, 2.0))
    write(run, "002")
    (run / "eval" / "002" / "metrics.json").write_text(content)
    (run / "eval" / "notes").mkdir()
    (run / "eval" / "003").mkdir()
    found = read_run(run, "run")
    assert [each.figures["loss"] for each in found.checkpoint_evaluations] == [2.0]
    assert [text.partition(" ")[0] for text in found.remarks] == ["eval/002/metrics.json"]


def test_no_link_is_followed_and_no_text_runs(make_run: MakeRun, tmp_path: Path) -> None:
    outside = make_run("outside")
    write(outside, "001", rows(20, 7.0))
    run = make_run()
    write(run, "001", rows(20, 2.0, EVIL))
    (run / "eval" / "002").symlink_to(outside / "eval" / "001")
    (run / "eval" / "003").mkdir()
    (run / "eval" / "003" / "metrics.json").symlink_to(outside / "eval" / "001" / "metrics.json")
    assert [each.call for each in read_run(run, "run").checkpoint_evaluations] == ["eval/001"]
    assert EVIL not in page([read_run(run, "run")])
    linked = make_run("linked")
    (linked / "eval").symlink_to(outside / "eval")
    assert read_run(linked, "linked").checkpoint_evaluations == ()


def test_only_the_newest_calls_are_read(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_evaluations, "MOST", 2)
    run = make_run()
    for call in range(1, 4):
        write(run, f"{call:03d}", rows(call, 2.0))
    assert [each.call for each in read_run(run, "run").checkpoint_evaluations] == ["eval/002", "eval/003"]
