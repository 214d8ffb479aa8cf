"""A line of the index, read from the ends of files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import pytest
from board_runs import append, record, served, text_of

from mt_core import MtError, UsageError
from mt_plugin_board.glance import Glance
from mt_plugin_board.index import Index
from mt_plugin_board.reader import RunReader
from mt_plugin_board.scan import roots_of, scan
from mt_plugin_board.searches import read_search
from mt_plugin_board.view import RunsView
from mt_tools.report.state import read_state
from mt_train import train
from mt_train.checkpoint.lock import Holder

MakeRun = Callable[..., Path]


def look(folder: Path, now: float | None = None) -> Glance:
    glance = Glance("a", folder)
    glance.refresh(time.time() if now is None else now)
    while glance.scan_on():
        pass
    glance.refresh(time.time() if now is None else now)
    return glance


def test_a_line_has_what_a_whole_reading_finds(make_run: MakeRun) -> None:
    folder = make_run(steps=0)
    records = [record(step) for step in range(1, 5001)]
    for each in records[::20]:
        each["eval_loss"] = 1.5 + abs(each["step"] - 3001) / 1000
    (folder / "metrics.jsonl").write_text(text_of(records))
    row = look(folder).row
    assert row["step"] == 5000
    assert row["figure"] == "eval_loss"
    assert row["best"] == [3001, 1.5]
    assert row["last"] == records[4999]["eval_loss"] == pytest.approx(4 / 5000 + 1.6)
    assert row["step_seconds"] == pytest.approx(0.2)
    (folder / "metrics.jsonl").write_text(text_of([each | {"seconds": each["step"] / 2} for each in records]))
    assert look(folder).row["step_seconds"] == pytest.approx(0.5), "what records say goes before what follows from them"
    assert row["spark"][0][0] == 1
    assert row["spark"][-1][0] == 5000
    assert 40 <= len(row["spark"]) <= 49
    assert all(value == pytest.approx(5 / step + 1.5, rel=1e-5) for step, value in row["spark"])


def test_a_run_that_grows_or_goes_on_from_earlier_is_read_again(make_run: MakeRun) -> None:
    folder = make_run(steps=40)
    glance = look(folder)
    assert not glance.refresh(time.time())
    append(folder / "metrics.jsonl", record(41), record(60) | {"eval_loss": 0.5})
    assert glance.refresh(time.time())
    glance.scan_on()
    glance.refresh(time.time())
    assert (glance.row["step"], glance.row["best"]) == (60, [60, 0.5])
    (folder / "new").write_text(text_of([record(step) for step in range(1, 31)]))
    os.replace(folder / "new", folder / "metrics.jsonl")
    glance.refresh(time.time())
    glance.scan_on()
    glance.refresh(time.time())
    assert (glance.row["step"], glance.row["best"]) == (30, [20, 1.8])


def holder(process: int, host: str | None = None, boot: str | None = None) -> str:
    this = asdict(Holder.this())
    return json.dumps(this | {"process": process} | ({"host": host} if host else {}) | ({"boot": boot} if boot else {}))


@pytest.mark.parametrize(
    ("lock", "about", "completed", "age", "expected"),
    [
        (None, {}, True, 0, ("completed", "completed", "")),
        (holder(1), {}, False, 0, ("running", "running", "")),
        (holder(1), {"ended": {"reason": "stopped"}}, True, 0, ("running", "running", "")),
        (holder(1), {}, False, 12 * 60, ("silent", "silent for 12 min", "holds the folder")),
        (holder(1, host="far"), {}, False, 5, ("running", "running", "")),
        (holder(1, host="far"), {}, False, 3 * 3600, ("silent", "silent for 3 h", "on far holds")),
        (holder(2**22 + 1), {}, False, 0, ("stopped", "stopped", "was killed")),
        (holder(1, boot="another"), {}, False, 0, ("stopped", "stopped", "was killed, or its machine went down")),
        ("", {"ended": {"reason": "stopped", "error": "SIGTERM"}}, False, 0, ("stopped", "stopped", "SIGTERM")),
        ("", {"ended": {"reason": "failed", "error": "loss nan"}}, False, 0, ("failed", "failed", "loss nan")),
        ("no json", {"ended": "no end"}, False, 0, ("stopped", "stopped", "")),
    ],
)
def test_states_are_true(
    lock: str | None,
    about: dict[str, object],
    completed: bool,
    age: float,
    expected: tuple[str, str, str],
    make_run: MakeRun,
) -> None:
    folder = make_run(steps=3, completed=completed)
    if lock is not None:
        (folder / ".lock").write_text(lock)
    state = read_state(folder, about, completed=completed, now=time.time() + age)
    assert (state.word, state.text) == expected[:2]
    assert expected[2] in state.reason


def test_long_steps_are_no_silence(make_run: MakeRun) -> None:
    folder = make_run(steps=3)
    (folder / ".lock").write_text(holder(1))
    now = time.time() + 12 * 60
    assert read_state(folder, {}, completed=False, now=now, step_seconds=100).word == "running"
    (folder / "system.jsonl").write_text("{}")
    os.utime(folder / "system.jsonl", (now, now))
    assert read_state(folder, {}, completed=False, now=now).word == "silent", (
        "a thread of its own is no sign of training"
    )


def test_damaged_files_leave_a_line(make_run: MakeRun) -> None:
    folder = make_run(steps=3)
    (folder / "about.json").write_text("[1, 2")
    (folder / "metrics.jsonl").write_text("\n\nno json\n[1]\n" + text_of([{"step": 1, "loss": None}]) + '{"step": 2')
    row = look(folder).row
    assert (row["step"], row["last"], row["total"]) == (1, None, None)
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to("/etc/passwd")
    assert look(folder).row["step"] is None


def test_runs_and_searches_are_found_without_following_links(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("deep/er/a")
    (run / "checkpoints" / "inner").mkdir(parents=True)
    (run / "checkpoints" / "inner" / "run.yaml").write_text("{}")
    elsewhere = tmp_path / "elsewhere" / "b"
    elsewhere.mkdir(parents=True)
    (elsewhere / "run.yaml").write_text("{}")
    (tmp_path / "runs" / "link").symlink_to(elsewhere.parent)
    search = tmp_path / "runs" / "search"
    (search / "trial-001").mkdir(parents=True)
    (search / "search.yaml").write_text("metric: accuracy:max")
    (search / "trial-001" / "run.yaml").write_text("{}")
    found = scan(roots_of([tmp_path / "runs", tmp_path / "runs", run]))
    assert sorted(found.runs) == ["a", "runs/deep/er/a", "runs/search/trial-001"]
    assert list(found.searches) == ["runs/search"]
    with pytest.raises(UsageError, match=r"run\.yaml is a file; give folders"):
        roots_of([run / "run.yaml"])


ODD_NAMES = (
    "logs",
    "eval",
    "a b ",
    "#1",
    "a?b&c+d",
    "%41",
    "é~雪",
    "<script>alert(1)</script>",
    "'\"",
    "a\\b",
    "line\nend",
)


def test_runs_of_any_name_are_found_and_shown(make_run: MakeRun, tmp_path: Path) -> None:
    names = (*ODD_NAMES, os.fsdecode(b"no \xff utf-8"))
    for name in names:
        make_run(name, steps=3)
    with served(tmp_path / "runs") as client:
        with client.stream("/live/index") as news:
            shown = {row["id"]: row for row in next(news)[1]["rows"]}
        assert shown.keys() == {f"runs/{name}" for name in ODD_NAMES} | {"runs/no \\xff utf-8"}
        for identifier, row in shown.items():
            assert row["step"] == 3, "its figures are read"
            with client.stream(f"/live/runs?run={quote(identifier, safe='')}") as news:
                kind, content = next(news)
            assert (kind, content["ids"], content["problem"]) == ("snapshot", [identifier], "")
            assert "<script>" not in "".join(content["parts"].values())


def test_a_time_that_is_left_beyond_every_number_hides_no_other_run(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run("a", about={"total_steps": 2**52})
    make_run("b")
    (folder / ".lock").write_text(json.dumps(asdict(Holder.this()) | {"host": "far"}))
    append(folder / "metrics.jsonl", record(61) | {"tokens": 1e299, "tokens_per_second": 1.0})
    _, content = Index([tmp_path / "runs"]).rows_since(-1)
    assert {row["id"]: row["state"] for row in content["rows"]} == {"runs/a": "running", "runs/b": "stopped"}
    json.dumps(content, allow_nan=False)


def test_folders_of_one_name_have_names_that_differ(tmp_path: Path) -> None:
    for name in ("x/runs", "y/runs"):
        (tmp_path / name).mkdir(parents=True)
    assert list(roots_of([tmp_path / "x/runs", tmp_path / "y/runs"])) == ["runs", "runs~2"]


def test_a_search_is_a_table_with_its_best_trial(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text("metric: accuracy:max")
    (tmp_path / "trials.csv").write_text(
        "trial,state,accuracy,optimizer.lr,steps,seconds,run,error\n"
        "1,complete,0.5,1e-3,10,2.0,trial-001,\n2,complete,0.7,1e-4,10,2.0,trial-002,\n"
        '3,failed,,1e-2,3,1.0,trial-003,"loss nan, and more"\n4,complete,nan,1,1,1,trial-004,\n'
    )
    found = read_search(tmp_path, "runs/search")
    assert (found["metric"], found["keys"]) == ("accuracy", ["optimizer.lr"])
    assert [trial["trial"] for trial in found["trials"] if trial.get("best")] == ["2"]
    assert found["trials"][2]["error"] == "loss nan, and more"
    assert found["trials"][0]["id"] == "runs/search/trial-001"
    assert found["remarks"] == []
    assert read_search(tmp_path / "nowhere", "x")["trials"] == []


def test_a_damaged_table_of_trials_shows_the_others_and_says_how_many_are_left_out(tmp_path: Path) -> None:
    head, good = "trial,state,loss,steps,run", "1,complete,0.5,10,trial-001"
    table = tmp_path / "trials.csv"
    table.write_bytes(f"{head}\n2,comp\n\n3,complete,{'9' * 200_000},1,x\n{good}\n4,fail".encode() + b"\xff\x00")
    found = read_search(tmp_path, "s")
    assert [trial["id"] for trial in found["trials"]] == ["s/trial-001"]
    assert found["remarks"] == ["3 line(s) of trials.csv are no trial and were left out"]
    table.write_text("loss\n1\n")
    assert (read_search(tmp_path, "s")["trials"], len(read_search(tmp_path, "s")["remarks"])) == ([], 1)
    table.write_text(f"{head}\n" + "".join(f"{number},complete,1,1,t\n" for number in range(5001)))
    found = read_search(tmp_path, "s")
    assert len(found["trials"]) == 5000
    assert found["remarks"] == ["no more than 5,000 trials are shown; trials.csv has all"]


def test_a_run_that_failed_before_its_first_step_is_listed_and_shown_with_its_reason(
    tmp_path: Path, kit_model: None
) -> None:
    run, missing = tmp_path / "runs" / "early", tmp_path / "nowhere"
    with pytest.raises(MtError):
        train({"model": "kit-tiny", "dataset": {"name": "jsonl", "path": str(missing)}}, output=run)
    assert list(scan(roots_of([run.parent])).runs) == ["runs/early"]
    row = look(run).row
    assert (row["state"], row["step"], row["spark"]) == ("failed", None, [])
    assert f"{missing} does not exist" in row["reason"]
    assert "kit-tiny" in row["model"]
    kind, page = RunsView([RunReader("runs/early", run, "early")]).next_message() or ("", {})
    assert kind == "snapshot"
    assert page["problem"] == ""
    for part in ("heads", "notices"):
        assert f"{missing} does not exist" in page["parts"][part], part
    assert str(missing) in page["parts"]["config"]


@pytest.mark.parametrize(
    "line",
    [
        {"step": 41, "eval_loss": 10**400},
        {"step": 41, "eval_reward": 10**400},
        {"step": 41, "loss": 10**400, "tokens": 10**400, "tokens_per_second": 10**400},
        {"step": 10**400, "loss": 1.0, "tokens": 9e6, "tokens_per_second": 1.0},
        {"step": 41, "loss": 1.0, "tokens": 1e299, "tokens_per_second": 1e-299},
    ],
    ids=["eval_loss", "eval_reward", "figures", "step", "seconds"],
)
def test_a_number_that_nothing_can_compute_with_is_absent(line: dict[str, float], make_run: MakeRun) -> None:
    folder = make_run(steps=40)
    (folder / ".lock").write_text(holder(1))
    append(folder / "metrics.jsonl", line)
    row = look(folder).row
    json.dumps(row, allow_nan=False)
    assert (row["figure"], row["last"], row["best"]) == ("eval_loss", 1.7, [40, 1.7])
    assert row["left"] is None or row["left"] >= 0
    rows = Index([folder.parent]).rows_since(0)
    json.dumps(rows, allow_nan=False)


def test_a_total_that_nothing_can_compute_with_is_absent(make_run: MakeRun) -> None:
    folder = make_run(steps=3)
    (folder / ".lock").write_text(holder(1))
    (folder / "about.json").write_text(json.dumps({"total_steps": 10**400}))
    assert (look(folder).row["total"], look(folder).row["left"]) == (None, None)


@pytest.mark.parametrize("moment", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400])
@pytest.mark.parametrize("first", [True, False])
def test_a_line_of_the_machine_without_a_time_is_passed_over(moment: str, first: bool, make_run: MakeRun) -> None:
    folder = make_run(steps=3)
    good = [f'{{"time": {now}, "host": "h", "cpu_percent": 5}}\n' for now in (100, 107)]
    good.insert(0 if first else 1, f'{{"time": {moment}, "host": "x", "cpu_percent": 99}}\n')
    (folder / "system.jsonl").write_text("".join(good))
    reader = RunReader("a", folder, "a")
    reader.refresh(time.time())
    assert reader.problem == ""
    machine = reader.machines["system.jsonl"]
    assert (machine.host, machine.newest) == ("h", {"cpu_percent": 5})
    assert (machine.curves.records, machine.curves.last_step) == (2, 8)
