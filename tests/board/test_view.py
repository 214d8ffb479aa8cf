"""What a page is told, in deltas, equals what a page is told that opens anew."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_runs import append, record, text_of

from mt_core.tracking.step_lines import StepLines
from mt_plugin_board.reader import RunReader
from mt_plugin_board.view import RunsView

MakeRun = Callable[..., Path]


class Page:
    """Keeps what a browser would, as board.js does."""

    def __init__(self, *readers: RunReader) -> None:
        self.view, self.content, self.now = RunsView(readers), {}, 0.0
        self.kinds: list[str] = []
        self.sizes: list[int] = []

    def tick(self) -> None:
        self.now += 1.0
        message = self.view.next_message(self.now)
        if message is None:
            return
        kind, content = copy.deepcopy(message)
        self.kinds.append(kind)
        self.sizes.append(len(json.dumps(content)))
        if kind == "snapshot":
            self.content = content
            return
        for place, news in content.get("runs", {}).items():
            merge(self.content["data"]["runs"][int(place)], news)
        for place, news in content.get("growth", {}).items():
            merge(self.content["machine"]["runs"][int(place)], news)
        self.content |= {key: content[key] for key in ("problem", "machine") if key in content}
        self.content["parts"] |= content.get("parts", {})


def merge(run: dict[str, Any], news: dict[str, Any]) -> None:
    for group in ("series", "axes"):
        for key, columns in news[group].items():
            begin = columns.pop("from", None)
            if begin is None:
                run[group][key] = columns
                continue
            old = run[group][key]
            keep = sum(x < begin for x in old["x"])
            for name, values in old.items():
                if isinstance(values, list):
                    old[name] = values[:keep] + columns[name]
    if "last" in run:
        run["last"] = news["last"]


def fresh(folder: Path) -> dict[str, Any]:
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    return page.content


def same_figures(page: Page, folder: Path) -> bool:
    anew = fresh(folder)
    return json.dumps(page.content["data"]) == json.dumps(anew["data"]) and page.content["machine"] == anew["machine"]


def test_deltas_add_up_to_what_a_new_page_gets_also_where_groups_widen(make_run: MakeRun) -> None:
    folder, draw = make_run(steps=0), random.Random(1)
    page, step = Page(RunReader("a", folder, "a")), 0
    page.tick()
    while step < 2300:  # groups become two and four steps wide on the way
        count = draw.choice([1, 1, 3, 40, 120])
        append(folder / "metrics.jsonl", *(record(step + each) for each in range(1, count + 1)))
        step += count
        page.tick()
        if draw.random() < 0.15 or step < 50:
            assert same_figures(page, folder), step
    assert same_figures(page, folder)
    assert page.kinds.count("snapshot") <= 3, "the first one, with the first record, and with the first evaluation"
    small = [size for kind, size in zip(page.kinds, page.sizes, strict=True) if kind == "delta"]
    assert sorted(small)[len(small) // 2] < 8000


def test_a_tick_of_one_step_is_small(make_run: MakeRun) -> None:
    folder = make_run(steps=900)
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    for step in range(901, 911):
        append(folder / "metrics.jsonl", record(step))
        page.tick()
    assert page.kinds == ["snapshot"] + ["delta"] * 10
    assert max(page.sizes[1:]) < 5000


def test_a_resume_from_an_earlier_step_cuts_back_to_what_a_fresh_page_has(make_run: MakeRun) -> None:
    folder = make_run(steps=50)
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    StepLines(folder / "metrics.jsonl").cut_back(30)
    page.tick()
    assert page.content["data"]["runs"][0]["series"]["loss"]["x"][-1] == 30
    for step in range(31, 60):
        append(folder / "metrics.jsonl", record(step) | {"loss": 9.0})
        page.tick()
        assert same_figures(page, folder)
    assert page.content["data"]["runs"][0]["series"]["loss"]["y"][30:40] == [9] * 10


def test_texts_come_when_their_file_changes_and_only_then(make_run: MakeRun) -> None:
    folder = make_run(steps=20)
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    append(folder / "samples.jsonl", {"step": 20, "row_id": "r", "prompt": "p", "expected": "e", "text": "written"})
    append(folder / "events.jsonl", {"time": 1.0, "step": 20, "kind": "warning", "text": "rows are few"})
    append(folder / "evaluations.jsonl", {"step": 20, "evaluation": "arc", "figures": {"accuracy": 0.25}})
    message = page.view.next_message(5.0)
    assert message is not None
    assert (
        {"samples", "notices", "evaluations"}
        <= message[1]["parts"].keys()
        <= {"samples", "notices", "evaluations", "heads"}
    )
    assert "written" in message[1]["parts"]["samples"]
    assert "rows are few" in message[1]["parts"]["notices"]
    assert page.view.next_message(6.0) is None


def test_what_mt_eval_finds_comes_when_it_is_written(make_run: MakeRun) -> None:
    run = make_run()
    page = Page(RunReader("run", run, "run"))
    page.tick()
    assert not page.content["parts"].get("checkpoint-evaluations")
    for call, loss in (("001", 1.5), ("002", 0.625)):
        folder = run / "eval" / call
        folder.mkdir(parents=True)
        page.tick()
        result = {"model": "step-00000004", "step": 4, "dataset": "held out", "loss": loss}
        (folder / "metrics.json").write_text(json.dumps({"results": [result]}))
        page.tick()
        assert str(loss) in page.content["parts"]["checkpoint-evaluations"]
    assert "1.5" not in page.content["parts"]["checkpoint-evaluations"], "the newest of a checkpoint"


def test_the_machine_of_each_rank_grows_too(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    line = {"rank": 0, "host": "node", "step": 1, "cpu": 0.5, "memory_gib": 2.0}
    append(folder / "system.jsonl", {"time": 100.0} | line)
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    assert [run["name"] for run in page.content["machine"]["runs"]] == ["rank 0 on node"]
    append(folder / "system.jsonl", *({"time": 100.0 + 10 * each} | line for each in range(1, 30)))
    page.tick()
    assert page.content["machine"]["runs"][0]["last"] == 291
    append(folder / "system-1.jsonl", {"time": 105.0} | line | {"rank": 1})
    page.tick()
    assert [run["name"] for run in page.content["machine"]["runs"]] == ["rank 0 on node", "rank 1 on node"]
    assert same_figures(page, folder)


def test_a_run_that_is_removed_stays_shown_with_a_remark_and_one_that_comes_again_is_read(make_run: MakeRun) -> None:
    folder = make_run(steps=10)
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    kept = folder.rename(folder.with_name("elsewhere"))
    page.tick()
    assert "not there any more" in page.content["problem"]
    assert page.content["data"]["runs"][0]["series"]["loss"]["x"][-1] == 10
    kept.rename(folder)
    append(folder / "metrics.jsonl", record(11))
    page.tick()
    assert page.content["problem"] == ""
    assert same_figures(page, folder)


def test_a_link_in_place_of_a_run_is_not_followed(make_run: MakeRun, tmp_path: Path) -> None:
    folder, other = make_run("a", steps=3), make_run("b", steps=3, config={"secret": "of another"})
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    folder.rename(tmp_path / "moved")
    folder.symlink_to(other)
    page.tick()
    assert "a link stands in its place" in page.content["problem"]
    assert "of another" not in json.dumps(page.content)


def test_damaged_lines_gaps_and_huge_texts_leave_a_page_with_remarks(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            'no record\n{"step": 6, "loss": NaN}\n{"step": 7, "loss": Infinity}\n[1]\n'
            + text_of([record(8)])
            + '{"step"'
        )
    append(folder / "samples.jsonl", {"step": 5, "row_id": "r", "prompt": "", "expected": "", "text": "x" * 10_000_000})
    page = Page(RunReader("a", folder, "a"))
    page.tick()
    series = page.content["data"]["runs"][0]["series"]["loss"]
    assert series["x"][5:] == [6, 7, 8]
    assert series["y"][5:7] == [None, None]
    assert "2 line(s) of metrics.jsonl are no record" in page.content["parts"]["heads"]
    assert "more letters" in page.content["parts"]["samples"]
    assert page.sizes[0] < 100_000


def test_damaged_events_and_figures_of_the_machine_are_counted_on_the_page(make_run: MakeRun) -> None:
    folder = make_run(steps=5)
    event = {"time": 1.0, "step": 5, "kind": "warning", "text": "rows are few"}
    odd = [{**event, "step": 10**400}, {**event, "step": -1}, {**event, "time": float("nan")}, {**event, "time": None}]
    (folder / "events.jsonl").write_text(text_of([event, *odd]) + '{"time"\n')
    line = {"time": 100.0, "rank": 0, "host": "node", "step": 1, "cpu": 0.5}
    (folder / "system.jsonl").write_text(text_of([line, {**line, "time": "x"}]) + "[]\n")
    page = Page(RunReader("a", folder, "a"))
    for _ in range(2):
        page.tick()
        assert "rows are few" in page.content["parts"]["notices"]
        assert "5 line(s) of events.jsonl cannot be read and were left out" in page.content["parts"]["heads"]
        assert "2 line(s) of system.jsonl cannot be read and were left out" in page.content["parts"]["heads"]
        append(folder / "metrics.jsonl", record(6))
    (folder / "events.jsonl").write_text("")
    page.tick()
    assert "events.jsonl" not in page.content["parts"]["heads"]


def test_what_is_told_of_a_folder_stays_while_its_files_grow(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", steps=3)
    (folder / "about.json").write_text("{broken")
    (folder / "samples.jsonl").symlink_to(tmp_path / "elsewhere")
    page = Page(RunReader("a", folder, "a"))
    for step in (4, 5, 6):
        page.tick()
        assert "samples.jsonl is a link, which is not followed" in page.content["parts"]["heads"], step
        assert "about.json cannot be read" in page.content["parts"]["heads"], step
        append(folder / "metrics.jsonl", record(step))


def test_a_folder_that_may_not_be_read_is_a_remark(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where a handle goes stale, or without permission; the system's own error is raised from below."""
    folder = make_run(steps=5)
    reader = RunReader("a", folder, "a")
    page = Page(reader)

    def refuse() -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(reader._tail, "changes", refuse)
    page.tick()
    assert "Stale file handle" in page.content["problem"]
    monkeypatch.undo()
    page.tick()
    assert page.content["problem"] == ""
    assert same_figures(page, folder)


def test_several_runs_are_compared_at_equal_tokens(make_run: MakeRun) -> None:
    first, second = make_run("first", steps=40), make_run("second", steps=60, config={"optimizer": {"lr": 1}})
    page = Page(RunReader("first", first, "first"), RunReader("second", second, "second"))
    page.tick()
    assert [run["name"] for run in page.content["data"]["runs"]] == ["first", "second"]
    table = page.content["parts"]["tokens"]
    assert "80,000" in table, "the tokens of the shorter run"
    mean = sum(5 / step + 1.5 for step in range(1, 41)) / 40
    assert table.count(f"{mean:.4g}") == 2, "both have the same losses at the same tokens"
    assert "Key that differs" in page.content["parts"]["config"]
    append(second / "metrics.jsonl", record(61))
    page.tick()
    assert page.content["data"]["runs"][1]["series"]["loss"]["x"][-1] == 61
