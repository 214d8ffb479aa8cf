"""What evaluations found: the newest lines of ``evaluations.jsonl`` on the page, runs side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_tools.report.evaluations import MAX_GROUPS, read_evaluations
from mt_tools.report.page import page
from mt_tools.report.run import read_run

MakeRun = Callable[..., Path]
Record = Callable[..., dict[str, Any]]
EVIL = "</script><img src=x onerror=alert(1)>"


def line(step: int, accuracy: float, name: str = "mmlu", **more: Any) -> dict[str, Any]:
    groups = {"anatomy": {"accuracy": accuracy, "count": 14}, "law": {"accuracy": 0.0, "count": 2}}
    usual = {"groups": groups, "signatures": {"accuracy": "shots:0"}, "notes": ["2 questions too long"]}
    figures = {"figures": {"accuracy": accuracy}, "seconds": 1.25, "requests": 64}
    return {"step": step, "evaluation": name, **figures, **usual, **more}


def page_of(*folders: Path) -> str:
    return page([read_run(folder, folder.name) for folder in folders])


def tables(html: str) -> list[list[list[str]]]:
    """Tables of the section, as rows of cells."""
    found = re.search(r'<section id="evaluations".*?</section>', html, re.DOTALL)
    assert found is not None
    return [
        [
            [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in re.findall(r"<tr>(.*?)</tr>", each, re.DOTALL)
        ]
        for each in re.findall(r"<table>(.*?)</table>", found[0], re.DOTALL)
    ]


def test_the_newest_figures_and_groups_of_each_evaluation_are_tables(make_run: MakeRun) -> None:
    other = line(20, 0.9, "piqa", groups={}, signatures={}, notes=[])
    html = page_of(make_run(evaluations=[line(20, 0.25), other, line(40, 0.5)]))
    assert tables(html) == [
        [["Figure", "newest"], ["accuracy", "0.5"], ["after step", "40"], ["seconds", "1.25"], ["requests", "64"]],
        [["Group", "accuracy", "count"], ["anatomy", "0.5", "14"], ["law", "0", "2"]],
        [["Figure", "newest"], ["accuracy", "0.9"], ["after step", "20"], ["seconds", "1.25"], ["requests", "64"]],
    ]
    assert html.count("accuracy: shots:0") == html.count("2 questions too long") == 1


def test_two_runs_stand_side_by_side(make_run: MakeRun) -> None:
    first = make_run("first", evaluations=[line(40, 0.5)])
    changed = line(60, 0.75, groups={"law": {"accuracy": 1.0}}, signatures={"accuracy": "shots:5"})
    html = page_of(first, make_run("second", evaluations=[changed]), make_run("third"))
    figures, groups = tables(html)
    assert figures[:3] == [["Figure", "first", "second"], ["accuracy", "0.5", "0.75"], ["after step", "40", "60"]]
    assert groups == [
        ["Group", "accuracy, first", "accuracy, second", "count, first", "count, second"],
        ["anatomy", "0.5", "–", "14", "–"],
        ["law", "0", "1", "2", "–"],
    ]
    assert "shots:0 (first)" in html
    assert "shots:5 (second)" in html
    assert "<li>2 questions too long</li>" in html, "what both say stands there once, without a name"


def test_a_run_without_evaluations_has_no_section(make_run: MakeRun) -> None:
    assert 'id="evaluations"' not in page_of(make_run())


def test_their_figures_are_drawn(make_run: MakeRun, record: Record) -> None:
    records = [record(step) | ({"eval_mmlu_accuracy": 0.3} if step % 2 == 0 else {}) for step in range(1, 5)]
    html = page_of(make_run(records=records, evaluations=[line(4, 0.3)]))
    assert 'data-key="eval_mmlu_accuracy"' in html
    assert "<h3>Mmlu accuracy</h3>" in html


def test_text_in_findings_is_never_markup(make_run: MakeRun) -> None:
    groups = {EVIL: {EVIL: 1.0}}
    html = page_of(
        make_run(
            evaluations=[line(1, 0.5, EVIL, groups=groups, signatures={EVIL: EVIL}, notes=[EVIL], figures={EVIL: 1})]
        )
    )
    assert "<img" not in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") >= 7


@pytest.mark.parametrize(
    "damaged",
    [
        '{"step": 3, "evaluation": "mmlu", "fig',
        "[]",
        "null",
        '{"step": 3}',
        json.dumps(line(3, 0.5) | {"figures": [1]}),
        json.dumps(line(3, 0.5) | {"groups": ["law"]}),
        json.dumps(line(3, 0.5) | {"groups": {"law": 1}}),
        json.dumps(line(3, 0.5) | {"notes": "a text"}),
        json.dumps(line(3, 0.5) | {"signatures": [1]}),
        json.dumps(line(3, 0.5) | {"step": "third"}),
        "[" * 100_000,
    ],
)
def test_a_damaged_line_is_a_remark(make_run: MakeRun, damaged: str) -> None:
    run = read_run(make_run(evaluations=[line(2, 0.5), damaged]), "run")
    assert "1 line(s) of evaluations.jsonl are no findings and were left out" in run.remarks
    assert run.evaluations.newest["mmlu"].figures == {"accuracy": 0.5}
    assert "1 line(s) of evaluations.jsonl" in page([run])


def test_what_is_no_number_is_no_figure(make_run: MakeRun) -> None:
    odd = {"accuracy": float("nan"), "name": "text", "huge": 10**400, "yes": True, "count": None}
    bare = {"step": 1, "evaluation": "mmlu", "figures": odd}
    (figures,) = tables(page_of(make_run(evaluations=[bare])))
    assert figures[1:] == [
        *([name, "not finite"] for name in ("accuracy", "huge", "count")),
        ["after step", "1"],
        ["seconds", "–"],
        ["requests", "–"],
    ]


def test_a_page_has_a_bound_on_groups_and_letters(make_run: MakeRun) -> None:
    groups = {f"group {number}": {"accuracy": 0.5} for number in range(MAX_GROUPS + 7)}
    folder = make_run(evaluations=[line(1, 0.5, groups=groups, notes=["a" * 10_000])])
    html = page_of(folder)
    assert len(tables(html)[1]) == MAX_GROUPS + 1
    assert "7 group(s) of mmlu are not shown; evaluations.jsonl has all" in html
    assert "a" * 3000 not in html
    assert read_evaluations(folder / "none.jsonl").newest == {}
