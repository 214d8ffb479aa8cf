"""What the machine does, beside the steps."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from mt_core import CallbackContext
from mt_plugin_callbacks.system import System, SystemConfig, read_gpu


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_writes_lines_with_its_steps_and_is_computed_as_without(runs: Any) -> None:
    run = runs.train("run", steps=3, callbacks={"system": {"every_seconds": 0.1}})
    plain = runs.train("plain", steps=3)
    found = lines(run / "system.jsonl")
    assert found[-1]["step"] == 3
    assert 0 < found[-1]["memory_gib"] < 64
    losses = [[record["loss"] for record in lines(each / "metrics.jsonl")] for each in (run, plain)]
    assert losses[0] == losses[1]
    assert json.loads((run / "about.json").read_text())["files"] == ["system-*.jsonl", "system.jsonl"]


def test_each_rank_has_a_file_of_its_own_and_the_figures_are_the_systems(tmp_path: Path) -> None:
    callback = System(SystemConfig(every_seconds=0.2))
    context = CallbackContext(step=5, total_steps=9, output=tmp_path, weights=SimpleNamespace(rank=2))
    (tmp_path / "system-2.jsonl").write_text('{"time": 1, "step": 4}\n{"time": 2, "st')
    callback.on_run_start(context)
    end = time.monotonic() + 0.7
    while time.monotonic() < end:  # one processor is busy
        sum(range(1000))
    callback.on_run_end(context)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl"] == ["system-2.jsonl"]
    old, *found = lines(tmp_path / "system-2.jsonl")
    assert old == {"time": 1, "step": 4}
    assert found[-1]["rank"] == 2
    assert found[-1]["step"] == 5
    assert 0.2 < found[0]["process_cpu"] < 1.5
    assert 0.1 / os.cpu_count() < found[0]["cpu"] <= 1.0
    disk = os.statvfs(tmp_path)
    assert found[-1]["disk_free_gib"] == pytest.approx(disk.f_bavail * disk.f_frsize / 2**30, rel=0.05)


@pytest.mark.parametrize("made_by_another", [False, True])
def test_a_folder_that_was_removed_is_not_made_again(tmp_path: Path, made_by_another: bool) -> None:
    callback = System(SystemConfig(every_seconds=0.1))
    folder = tmp_path / "run"
    folder.mkdir()
    context = CallbackContext(step=0, total_steps=9, output=folder)
    callback.on_run_start(context)
    folder.rmdir()
    if made_by_another:
        folder.mkdir()
    callback.on_exception(context)
    assert [*folder.glob("*")] == []
    assert folder.exists() == made_by_another
    assert not any(thread.name == "system" for thread in threading.enumerate())


def test_a_file_that_is_rotated_away_is_begun_anew(tmp_path: Path) -> None:
    """The thread ended without a word, and the run had no figures of its machine from then on."""
    callback, path = System(SystemConfig(every_seconds=0.1)), tmp_path / "system.jsonl"
    callback.on_run_start(CallbackContext(step=0, total_steps=9, output=tmp_path))
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.01)
    path.rename(tmp_path / "system.jsonl.1")
    callback.on_run_end(CallbackContext(step=9, total_steps=9, output=tmp_path))
    assert lines(path)[-1]["host"]
    assert lines(tmp_path / "system.jsonl.1")[0]["step"] == 0


def test_a_gpu_that_does_not_say_something_leaves_it_out() -> None:
    class NVMLError(Exception):
        pass

    def refuse(*_: object) -> None:
        raise NVMLError

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=75),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3 * 2**30),
        nvmlDeviceGetPowerUsage=lambda handle: 312_500,
        nvmlDeviceGetTemperature=refuse,
    )
    assert read_gpu(nvml, "handle") == {"gpu_use": 0.75, "gpu_memory_gib": 3.0, "gpu_watts": 312.5}


def test_an_interval_that_no_thread_can_wait_for_is_refused() -> None:
    """A wait longer than ``threading.TIMEOUT_MAX`` ended the thread, and with it the file, at the first look."""
    assert SystemConfig(every_seconds=86_400).every_seconds < threading.TIMEOUT_MAX
    with pytest.raises(ValidationError, match="less than or equal to 86400"):
        SystemConfig(every_seconds=1e10)
