"""Code of a plugin that asks the process to end: a failure that names it, wherever it is called, and never a success."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_core import MtError
from mt_core.errors import CallbackError, PluginExitError, StopNow, refuse_exit
from mt_train import train

PLUGIN = """
import os, sys
from contextlib import contextmanager
from typing import Literal
from mt_core import ANY, Component, MtConfig, ObjectiveComponent, hookimpl

class Where(MtConfig):
    where: str = ""
    kind: str = "SystemExit"
    rank: int = 0

class Quits:
    def __init__(self, config):
        self.config = config

    def leave(self, where):
        if self.config.where == where and int(os.environ.get("RANK", "0")) == self.config.rank:
            raise {"SystemExit": SystemExit(0), "KeyboardInterrupt": KeyboardInterrupt()}[self.config.kind]

    def on_run_start(self, context):
        self.leave("on_run_start")

    def on_step_end(self, context):
        self.leave("on_step_end")

    def on_checkpoint_saved(self, context):
        self.leave("on_checkpoint_saved")

    def on_run_end(self, context):
        self.leave("on_run_end")

    @contextmanager
    def around_evaluation(self, context):
        self.leave("around_evaluation")
        yield

    def state_dict(self):
        self.leave("state_dict")
        return {}

    def tensors(self):
        self.leave("tensors")
        return iter(())

class Rows:
    def __init__(self, config):
        self.config = config

    def __len__(self):
        return 40

    def row(self, index):
        if index == 7 and self.config.where == "row":
            sys.exit()
        return {"id": str(index), "text": f"this is row number {index}"}

class Flow:
    def __init__(self, config):
        self.config = config

    def rows(self, epoch, seed):
        for number in range(400):
            if number == 30:
                sys.exit(0)
            yield {"id": str(number), "text": f"this is row number {number}"}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

def schedule(config, *, total_steps):
    def rate(step):
        if config.where and step == 1:
            raise SystemExit("enough")
        return 1.0
    return rate

def line(config):
    return lambda records: sys.exit(0)

class Tracker:
    def log(self, record):
        sys.exit(0)

    def close(self, *, failed):
        pass

@hookimpl
def mt_callbacks():
    return [Component(name="quits", config=Where, build=Quits, summary="ends the process", layouts=ANY)]

@hookimpl
def mt_datasets():
    def rows(config, *, split):
        return Rows(config) if split == "train" else None
    def flow(config, *, split):
        return Flow(config) if split == "train" else None
    return [
        Component(name="quits-rows", config=Where, build=rows, summary="rows"),
        Component(name="quits-flow", config=Where, build=flow, summary="rows"),
    ]

@hookimpl
def mt_schedules():
    return [Component(name="quits-rates", config=Where, build=schedule, summary="rates")]

@hookimpl
def mt_task_prints():
    return [Component(name="quits-line", build=line, summary="a line")]

@hookimpl
def mt_trackers():
    return [Component(name="quits-tracker", build=lambda config, *, run: Tracker(), summary="a tracker")]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit_model: None) -> Path:
    site = tmp_path / "site"
    info = site / "acme_quits-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_quits.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-quits\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mt_core.plugins]\nacme = acme_quits\n")
    monkeypatch.syspath_prepend(site)
    return site


def raw_config(**sections: Any) -> dict[str, Any]:
    return {
        "model": "kit-tiny",
        "dataset": "quits-rows",
        "train": {"steps": 3, "micro_batch_size": 2, "sequence_len": 32},
        "data": {"eval": 4},
        "eval": {"every_steps": 2, "samples": 0},
        **sections,
    }


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
@pytest.mark.parametrize("where", ["on_run_start", "on_step_end"])
def test_a_callback_that_leaves_has_failed(site: Path, tmp_path: Path, where: str, kind: str) -> None:
    with pytest.raises(CallbackError, match=rf"callback quits \(acme_quits\) failed in {where} at step \d: {kind}"):
        train(raw_config(callbacks={"quits": {"where": where, "kind": kind}}), output=tmp_path / "run")
    assert not (tmp_path / "run" / "completed").exists()
    ended = json.loads((tmp_path / "run" / "about.json").read_text())["ended"]
    assert ended["reason"] == "failed"
    assert f"callback quits (acme_quits) failed in {where}" in ended["error"]


@pytest.mark.parametrize("background", [False, True], ids=["in line", "background"])
@pytest.mark.parametrize("where", ["on_checkpoint_saved", "on_run_end", "around_evaluation", "state_dict", "tensors"])
def test_so_has_one_that_leaves_anywhere_else(site: Path, tmp_path: Path, where: str, background: bool) -> None:
    config = raw_config(callbacks={"quits": {"where": where}}, checkpoint={"background": background})
    with pytest.raises(MtError, match=rf"callback quits \(acme_quits\) failed in {where}( at step \d)?: SystemExit: 0"):
        train(config, output=tmp_path / "run")
    assert not (tmp_path / "run" / "completed").exists()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"dataset": {"name": "quits-rows", "where": "row"}}, "acme_quits.Rows.row"),
        ({"dataset": {"name": "quits-flow"}, "data": {"eval": None, "shuffle_buffer": 8}}, "acme_quits.Flow.rows"),
        ({"schedule": {"name": "quits-rates", "where": "x"}}, "acme_quits.schedule.<locals>.rate"),
    ],
    ids=["rows", "a thread that reads a stream", "schedule"],
)
def test_other_components_that_leave_are_named_with_the_place(
    site: Path, tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    with pytest.raises(PluginExitError) as raised:
        train(
            raw_config(**{**changes, "train": {"steps": 40, "micro_batch_size": 2, "sequence_len": 32}}),
            output=tmp_path / "run",
        )
    assert f"in {place} (line " in str(raised.value)
    assert "of acme-quits 1.0" in str(raised.value)
    assert "asked the process to end (SystemExit" in str(raised.value)


def test_a_line_or_a_tracker_that_leaves_is_left_out_as_one_that_fails(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(raw_config(task_print="quits-line", trackers=["quits-tracker"]), output=tmp_path / "run")
    said = capsys.readouterr().err
    assert said.count("task print quits-line failed at step 1: SystemExit: 0") == 1
    assert said.count("tracker quits-tracker failed (log): SystemExit: 0") == 1
    assert (tmp_path / "run" / "completed").exists()


def test_when_one_of_two_processes_leaves_the_run_fails_and_says_which(site: Path, tmp_path: Path) -> None:
    words = ["--model", "kit-tiny", "--dataset", "quits-rows", "--train.steps", "3", "--train.sequence-len", "32"]
    words += ["--callbacks", "quits", "--callbacks.quits.where", "on_step_end", "--callbacks.quits.rank", "1"]
    command = [sys.executable, "-m", "mt_train.cli.train", *words, "--nproc-per-node", "2", "--output", "run"]
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=1500
    )
    assert ended.returncode == 1, ended.stderr
    assert (
        "rank 1 ended with code 1: callback quits (acme_quits) failed in on_step_end at step 1: SystemExit: 0"
        in ended.stderr
    )
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run" / "completed").exists()


def raised_by(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    raise AssertionError("nothing was raised")


def test_what_is_of_no_plugin_is_let_through_where_it_may_be_a_persons() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    for real in (KeyboardInterrupt(), StopNow()):
        assert raised_by(lambda real=real: refuse_exit(real)) is real
    error = raised_by(interrupted)
    assert raised_by(lambda: refuse_exit(error, {"elsewhere": "dataset x of y 1.0"})) is error
    package = __name__.partition(".")[0]
    assert isinstance(raised_by(lambda: refuse_exit(error, {package: "dataset x of y 1.0"})), PluginExitError)
    assert isinstance(raised_by(lambda: refuse_exit(asyncio.CancelledError())), PluginExitError)
