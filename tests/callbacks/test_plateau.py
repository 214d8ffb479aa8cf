"""Rates that fall where a figure has stopped to improve: as torch lowers them, on the optimizer, and the same after a resume."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau

sys.path.insert(0, str(Path(__file__).parent))

from test_stopping import after, scene

from mt_core import Control, MtError
from mt_core.errors import CallbackError
from mt_plugin_callbacks.plateau import Plateau, PlateauConfig
from mt_train import train
from mt_train.assemble.callbacks import CallbackContext, Callbacks

OFTEN: dict[str, Any] = {"patience": 0, "factor": 0.5, "threshold": 0.9}
"""A loss is no better unless it is a tenth of the best, so that every evaluation but the first lowers the rates."""


def rates(values: list[float], mode: str = "min", **options: Any) -> list[float]:
    """Factors of the schedule's rates after each value."""
    callback = scene(Plateau(PlateauConfig(**options)), f"eval_loss:{mode}")
    found, rate = [], 1.0
    for place, value in enumerate(values):
        answer = callback.on_step_end(after(place, eval_loss=value))
        rate = answer.rate if isinstance(answer, Control) and answer.rate is not None else rate
        found.append(rate)
    return found


@given(
    st.lists(st.sampled_from([0.5, 0.9, 0.99, 0.9999, 0.99995, 1.0, 1.5, 2.0, math.nan, math.inf]), max_size=30),
    st.sampled_from(["min", "max"]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([0.0, 1e-4, 0.1]),
    st.sampled_from([0.0, 0.05]),
)
def test_rates_are_those_of_torch(
    values: list[float], mode: str, patience: int, cooldown: int, threshold: float, least: float
) -> None:
    """In float64 to the last bit, for figures above 0: below, torch takes what is a little worse for better."""
    if mode == "max":
        values = [-value if value == math.inf else value for value in values]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    options: dict[str, Any] = {"patience": patience, "cooldown": cooldown, "threshold": threshold, "factor": 0.3}
    theirs = ReduceLROnPlateau(optimizer, mode=mode, min_lr=least, eps=0.0, **options)  # type: ignore[arg-type]
    expected = []
    for value in values:
        theirs.step(value)
        expected.append(float(optimizer.param_groups[0]["lr"]))
    assert rates(values, mode, least=least, **options) == expected


def test_below_zero_a_figure_that_gets_worse_is_not_better() -> None:
    assert rates([-5.0, -4.9999, -4.9998], patience=1, threshold=0.1) == [1.0, 1.0, 0.1]
    assert rates([-5.0, -6.0, -7.0], patience=0, threshold=0.1) == [1.0, 1.0, 1.0]


def test_the_rates_of_a_run_are_lowered_after_the_evaluation_that_shows_it_also_after_a_resume(runs: Any) -> None:
    """A checkpoint is saved once the rates of the step after it are known."""
    pace = {"eval": {"every_steps": 1}, "schedule": {"name": "constant"}, "optimizer": {"lr": 0.008}}
    run = runs.train("run", steps=5, callbacks={"plateau": OFTEN}, **pace)
    expected = runs.records(run), runs.content(run)
    assert [record["lr"] for record in expected[0]] == [0.008, 0.008, 0.004, 0.002, 0.001]
    assert runs.state(run)["plateau"]["rate"] == 0.0625
    runs.resume(run, "step-00000003")
    assert (runs.records(run), runs.content(run)) == expected


def test_without_the_callback_a_resumed_run_has_the_rates_of_its_schedule(runs: Any) -> None:
    pace = {"eval": {"every_steps": 1}, "schedule": {"name": "constant"}, "optimizer": {"lr": 0.008}}
    run = runs.train("run", steps=3, callbacks={"plateau": OFTEN}, **pace)
    train({"train": {"steps": 4}, "callbacks": "none"}, resume=run)
    assert [record["lr"] for record in runs.records(run)] == [0.008, 0.008, 0.004, 0.008]


def test_a_figure_that_never_comes_is_refused_before_the_first_step() -> None:
    with pytest.raises(MtError, match=r"callback plateau waits for eval_loss, and this run holds no rows out"):
        scene(Plateau(PlateauConfig()), evaluates=False)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, True, "half"])
def test_a_rate_that_is_none_is_refused_by_the_name_of_the_callback(rate: Any) -> None:
    class Odd:
        def on_step_end(self, context: CallbackContext) -> Control:
            return Control(rate=rate)

    with pytest.raises(CallbackError, match=r"callback odd asks for rate .* in on_step_end; it is a finite number"):
        Callbacks({"odd": Odd()}).call("on_step_end", after(1))


def test_rates_of_several_callbacks_are_multiplied() -> None:
    class Fixed:
        def __init__(self, *rates: float) -> None:
            self._rates = iter(rates)

        def on_step_end(self, context: CallbackContext) -> Control:
            return Control(rate=next(self._rates, None))

    callbacks = Callbacks({"a": Fixed(0.5, 0.25), "b": Fixed(0.1)})
    schedule = callbacks.scale(lambda step: 2.0)
    assert schedule(0) == 2.0
    callbacks.call("on_step_end", after(1))
    assert schedule(1) == pytest.approx(0.1)
    callbacks.call("on_step_end", after(2))
    assert schedule(2) == pytest.approx(0.05), "what a callback asks for replaces what it asked for before"
