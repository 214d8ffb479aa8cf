"""A stopped and resumed run equals one that nothing disturbed, bit for bit, with each callback on."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

CALLBACKS: dict[str, dict[str, Any]] = {
    "early-stopping": {"patience": 3, "metric": "loss"},
    "best": {},
    "ema": {"decay": 0.5},
    "mt-plugin-callbacks/ema": {"decay": 0.9},
    "swa": {"start": 0.3, "every_steps": 2},
    "neftune": {},
    "spike-rollback": {"patience": 1, "window": 2, "ratio": 1.0001, "every_steps": 2},
    "gradient-noise": {"eta": 1e-4},
    "flops": {"peak_teraflops": 1.0},
    "memory": {},
    "predictions": {},
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_resumed_run_equals_one_that_was_not_stopped(runs: Any, name: str) -> None:
    whole = runs.train("whole", callbacks={name: CALLBACKS[name]}, eval={"samples": 1})
    half = shutil.copytree(whole, runs.folder / "half")
    for step in range(4, 7):
        shutil.rmtree(half / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
    runs.resume(half, "step-00000003")
    assert runs.records(half) == runs.records(whole)
    assert runs.content(half) == runs.content(whole)
    assert runs.state(half) == runs.state(whole)
