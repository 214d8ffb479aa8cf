"""Ranks that the others wait for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mt_core import CallbackContext, UsageError
from mt_plugin_callbacks.repetition import RepeatedSteps
from mt_plugin_callbacks.stragglers import Change, DeviationWatch, Stragglers, StragglersConfig, Watch


def changes(watch: Watch, windows: list[list[float]]) -> list[list[Change]]:
    return [watch.look(values) for values in windows]


def test_a_rank_is_named_in_its_third_slow_window_and_once_and_again_when_it_has_recovered() -> None:
    slow, even = [1.0, 1.0, 1.2, 1.0], [1.0, 1.0, 1.05, 1.0]
    found = changes(Watch(1.1, 3), [even, slow, slow, slow, slow, slow, even, even, even, even])
    assert [len(each) for each in found] == [0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert found[3][0] == Change(2, True, pytest.approx(1.2))
    assert found[8][0].rank == 2
    assert not found[8][0].slow


def test_windows_that_do_not_follow_one_another_name_nobody() -> None:
    slow, even = [1.0, 1.0, 1.0, 2.0], [1.0] * 4
    assert not any(changes(Watch(1.1, 3), [slow, slow, even] * 20))


def test_nobody_is_named_where_ranks_differ_by_chance_alone() -> None:
    """10,000 windows of 64 ranks whose times have a deviation of 2 %."""
    chance = random.Random(0)
    watch = Watch(1.1, 3)
    assert not any(watch.look([chance.gauss(1.0, 0.02) for _ in range(64)]) for _ in range(10_000))


def test_a_node_of_slow_ranks_is_named_rank_by_rank() -> None:
    found = changes(Watch(1.1, 3), [[1.0] * 24 + [1.3] * 8] * 3)
    assert [change.rank for change in found[-1]] == list(range(24, 32))


def test_a_rank_whose_gradient_is_far_from_the_others_is_named_on_either_side_and_without_a_number() -> None:
    even = [1.0, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97]
    for odd in (1.5, 0.0, float("nan"), float("inf")):
        found = changes(DeviationWatch(6, 3), [[*even, odd]] * 3)
        assert [[change.rank for change in each] for each in found] == [[], [], [7]], odd
    assert not any(changes(DeviationWatch(6, 3), [[*even, 1.1]] * 9))
    assert not any(changes(DeviationWatch(6, 3), [[float("nan")] * 5 + [1.0] * 3] * 9)), "most overflowed"


def test_no_gradient_is_named_by_chance_in_10_000_windows_of_8_ranks() -> None:
    chance = random.Random(0)
    watch = DeviationWatch(6, 3)
    named = sum(len(watch.look([chance.gauss(1.0, 0.1) for _ in range(8)])) for _ in range(10_000))
    assert named == 0


def gradients_context(world: int, model: Any, **parallel: int) -> CallbackContext:
    layers = [SimpleNamespace(module=each) for each in model]
    model.layers = lambda: layers
    return CallbackContext(
        step=0,
        total_steps=9,
        output=None,
        weights=SimpleNamespace(rank=0, world=world),
        model=model,
        config={"parallel": {"zero_stage": 0, **parallel}, "train": {"compile": False}},
    )


def test_the_norm_that_is_compared_is_that_of_the_rank_s_own_gradient() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    callback = Stragglers(StragglersConfig(gradient_deviations=6))
    callback.on_model_built(gradients_context(8, model))
    model(torch.randn(5, 3)).square().sum().backward()
    wanted = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    torch.testing.assert_close(callback._squares.sqrt().float(), wanted)


def test_a_step_that_is_computed_again_is_measured_once() -> None:
    """Whichever of the two callbacks is called first: the other still listens, or not any more."""
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    callback = Stragglers(StragglersConfig(gradient_deviations=6))
    context = gradients_context(8, model)
    callback.on_model_built(context)
    starts: list[int] = []
    callback._stopwatch.start = lambda: starts.append(1)  # type: ignore[union-attr, method-assign]
    repeated = RepeatedSteps(model, 4.0)
    rows = torch.randn(5, 3)

    def compute() -> None:
        model(rows).square().sum().backward()

    compute()
    before, calls = float(callback._squares), len(starts)
    context = replace(context, weights=SimpleNamespace(rank=0, world=1), repeat=compute)  # type: ignore[arg-type]
    assert repeated.repeat(context, is_suspicious=True) == []
    assert (float(callback._squares), len(starts)) == (before, calls)
    compute()
    assert float(callback._squares) == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("world", "parallel", "said"), [(3, {}, "needs 4 ranks"), (8, {"pipeline": 2}, "parallel.pipeline=2")]
)
def test_gradients_that_cannot_be_compared_are_refused(world: int, parallel: dict[str, int], said: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(4)))
    with pytest.raises(UsageError, match=said):
        Stragglers(StragglersConfig(gradient_deviations=6)).on_model_built(gradients_context(world, model, **parallel))


def test_a_layout_in_which_the_wait_cannot_be_told_apart_is_refused() -> None:
    context = CallbackContext(
        step=0,
        total_steps=9,
        output=None,
        weights=SimpleNamespace(rank=0, world=2),
        model=SimpleNamespace(layers=lambda: [SimpleNamespace(module=torch.nn.Linear(2, 2))] * 4),
        config={"parallel": {"zero_stage": 3}, "train": {"compile": True}},
    )
    with pytest.raises(UsageError, match=r"leave out train\.compile, or the callback"):
        Stragglers(StragglersConfig()).on_model_built(context)


def test_a_step_that_the_process_before_a_resume_computed_is_not_compared() -> None:
    """Its record comes with the evaluation that was due when the run was stopped; nothing of it was measured here."""
    callback = Stragglers(StragglersConfig())
    callback._stopwatch = SimpleNamespace(seconds=lambda: 0.0, reset=lambda: None, listens=False)  # type: ignore[assignment]
    callback._begin()
    record = SimpleNamespace(data_wait_seconds=0.0)
    context = SimpleNamespace(record=record, step=2, config={"log": {"every_steps": 1}}, weights=None, model=None)
    assert callback.on_step_end(context) is None  # type: ignore[arg-type]  # with a comparison it needs the other rank


def test_one_rank_alone_is_compared_with_nobody(runs: Any) -> None:
    with_it = runs.records(runs.train("run", callbacks={"stragglers": {}, "corruption-check": {}}))
    assert with_it == runs.records(runs.train("plain"))


@pytest.mark.soak
def test_a_rank_that_is_stopped_in_bursts_is_named_and_others_are_not(
    machines: Callable[..., Path], said: Callable[[Path], list[str]]
) -> None:
    """Rank 2 of 4 is stopped half of the time, for some windows."""
    folder = machines(
        4, {"slow": {"stage": 0, "steps": 64, "window": 8, "stop": [2, 16, 64], "callbacks": [{"name": "stragglers"}]}}
    )
    told = said(folder / "slow")
    assert any(
        "stragglers: rank 2 on " in text and "computes" in text and "in 3 windows in a row" in text for text in told
    ), told
