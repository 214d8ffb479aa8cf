"""``checkpoint.every_steps: auto``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mt_core.errors import ConfigError
from mt_train import check_config, train
from mt_train.assemble.save_interval import (
    FIRST_SAVE,
    LARGEST_SHARE,
    MOST_SECONDS,
    MeasuredInterval,
    best_interval,
    describe_auto,
    expected_loss,
    failure_seconds,
)
from mt_train.loop import Progress

PUBLISHED = [  # ranks, stall s, restart s -> minutes apart, share of the time that is kept
    (1_024, 60, 600, 77, 0.971),
    (1_024, 5, 600, 22, 0.989),
    (1_024, 5, 120, 22, 0.992),
    (16_384, 60, 600, 19, 0.84),
    (16_384, 5, 600, 5.6, 0.92),
    (16_384, 5, 120, 5.6, 0.96),
]
"""Young's formula at 50,000 hours a GPU, which 419 interruptions in 54 days on 16,384 GPUs give (arXiv 2407.21783)."""


@pytest.mark.parametrize(("ranks", "stall", "restart", "minutes", "kept"), PUBLISHED)
def test_intervals_and_losses_are_those_of_the_table(
    ranks: int, stall: float, restart: float, minutes: float, kept: float
) -> None:
    interval = best_interval(stall, ranks)
    assert interval / 60 == pytest.approx(minutes, rel=0.03)
    assert 1 - expected_loss(stall, interval, restart, ranks) == pytest.approx(kept, abs=0.006)


def test_machines_fail_as_often_as_was_reported() -> None:
    assert pytest.approx(failure_seconds(16_384), rel=0.02) == 54 * 24 * 3600 / 419


@pytest.mark.parametrize("ranks", [64, 1_024, 16_384])
def test_no_other_interval_loses_less_and_a_wrong_rate_of_failures_costs_little(ranks: int) -> None:
    def waste(interval: float) -> float:
        return expected_loss(20.0, interval, 0.0, ranks)

    best = best_interval(20.0, ranks)
    if best < MOST_SECONDS:
        assert all(waste(best) <= waste(best * factor) for factor in (0.25, 0.5, 0.9, 1.1, 2, 4))
        assert waste(best * 6**0.5) < 1.45 * waste(best)


def test_intervals_stay_within_their_bounds() -> None:
    assert best_interval(60, 1) == MOST_SECONDS, "programs fail, too"
    assert best_interval(900, 1_000_000) == 900 / LARGEST_SHARE, "saves take no more than their share"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(ranks: int, said: list[str], slowest: Callable[[float], float] = float) -> tuple[MeasuredInterval, Clock]:
    clock = Clock()
    return MeasuredInterval(ranks, slowest, said.append, clock=clock), clock


def saves(interval: MeasuredInterval, clock: Clock, *, first: int, last: int, step: float, stall: float) -> list[int]:
    """Steps after which a run of such steps saves."""
    interval.begin(first)
    found = []
    for number in range(first + 1, last + 1):
        clock.now += 40 * step if number == first + 3 else step  # an evaluation
        interval.note_step()
        if interval.is_due(Progress(step=number)):
            clock.now += stall
            interval.note_save(number, stall)
            found.append(number)
    return found


def test_the_first_save_is_measured_and_the_next_follow_the_last_one_and_it_is_told_once() -> None:
    said: list[str] = []
    interval, clock = measured(16_384, said)
    found = saves(interval, clock, first=100, last=400, step=10.0, stall=60.0)
    assert found == [110, 225, 340]  # 19 min apart
    assert len(said) == 1
    assert "a save every 115 steps, 19.1 min apart" in said[0]
    assert "holds the run up for 60 s, a step takes 10 s, and 16,384 ranks at 50,000 h each fail every 3 h" in said[0]


def test_a_save_that_a_callback_asked_for_counts_as_one() -> None:
    interval, clock = measured(16_384, [])
    saves(interval, clock, first=0, last=FIRST_SAVE, step=10.0, stall=60.0)
    interval.note_save(50, 60.0)
    assert not interval.is_due(Progress(step=125))
    assert interval.is_due(Progress(step=165))


def test_ranks_that_measure_otherwise_save_together() -> None:
    stalls, times = [4.0, 9.0], [0.5, 0.7]
    slowest = {value: max(values) for values in (stalls, times) for value in values}
    found = []
    for stall, step in zip(stalls, times, strict=True):
        interval, clock = measured(4_096, [], lambda value: slowest[round(value, 6)])
        found.append(saves(interval, clock, first=0, last=4_000, step=step, stall=stall))
    assert found[0] == found[1]
    assert len(found[0]) > 2


def test_a_run_saves_after_its_first_steps_and_at_its_end_and_again_when_it_is_resumed(
    tmp_path: Path, needs: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    needs("mt-plugin-llama")
    raw = {
        "model": {"name": "llama", "n_layers": 1, "dim": 16, "n_heads": 2, "n_kv_heads": 1},
        "train": {"steps": 12, "micro_batch_size": 2, "sequence_len": 16},
        "data": {"eval": None, "read_rows": 4},
        "eval": {"samples": 0},
        "checkpoint": {"every_steps": "auto", "keep_last": 9},
    }
    train(raw, output=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert names == ["step-00000010", "step-00000012"]
    assert capsys.readouterr().err.count("checkpoint.every_steps=auto: a save every") == 1
    train({"train": {"steps": 30}}, resume=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert names[2:] == ["step-00000022", "step-00000030"]


def test_the_plan_says_when_a_run_will_save() -> None:
    said = describe_auto(1_024)
    assert "22.1 min apart where one takes 5 s, 76.5 min apart where one takes 60 s" in said
    assert "1,024 ranks at 50,000 h each fail every 49 h" in said


@pytest.mark.parametrize("value", ["often", 0, True, 2.5])
def test_what_is_neither_a_count_nor_auto_is_refused_once(value: object, needs: Callable[[str], None]) -> None:
    needs("mt-plugin-llama")
    with pytest.raises(ConfigError, match=r"checkpoint\.every.steps: should be a whole number of 1 or more, or auto"):
        check_config({"model": "llama", "checkpoint": {"every_steps": value}})
