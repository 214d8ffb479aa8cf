"""The factor of the base rate at each update, against formulas and torch's own schedules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers.optimization import get_linear_schedule_with_warmup, get_scheduler

from mt_core import UsageError

relaxed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FLOORED = ("linear", "polynomial", "exponential", "wsd", "cosine-restarts", "relora")


def factors(build: Any, name: str, total: int, **values: Any) -> list[float]:
    schedule = build(name, values, total_steps=total)
    return [schedule(k) for k in range(total)]


def by_torch(make: Any, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_linear_polynomial_and_exponential_are_those_of_torch(build: Any) -> None:
    lr, total = torch.optim.lr_scheduler, 40
    line = by_torch(lambda o: lr.LinearLR(o, 1.0, 0.2, total_iters=total - 1), total)
    assert factors(build, "linear", total, warmup_ratio=0, floor_ratio=0.2) == pytest.approx(line, abs=1e-12)
    power = by_torch(lambda o: lr.PolynomialLR(o, total_iters=total - 1, power=3.0), total)
    assert factors(build, "polynomial", total, warmup_ratio=0, power=3.0) == pytest.approx(power, abs=1e-12)
    fall = by_torch(lambda o: lr.ExponentialLR(o, 0.05 ** (1 / (total - 1))), total)
    assert factors(build, "exponential", total, warmup_ratio=0, floor_ratio=0.05) == pytest.approx(fall, abs=1e-12)


@pytest.mark.parametrize("total", [2, 7, 100])
def test_a_line_with_a_floor_of_one_update_is_that_of_the_trainer(build: Any, total: int) -> None:
    """What docs/from-trainer.md says of ``--schedule.floor-ratio``; theirs is transformers' own function."""
    theirs = by_torch(lambda o: get_linear_schedule_with_warmup(o, 0, total), total)
    assert factors(build, "linear", total, warmup_ratio=0, floor_ratio=1 / total) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("theirs", "options", "name", "values"),
    [
        ("cosine", {}, "cosine-restarts", {"cycles": 1}),
        ("cosine_with_restarts", {}, "cosine-restarts", {"cycles": 1}),
        ("polynomial", {"lr_end": 0.1, "power": 2.5}, "polynomial", {"power": 2.5, "floor_ratio": 0.1}),
        ("polynomial", {"lr_end": 0.0}, "polynomial", {"power": 1.0}),
        ("inverse_sqrt", {}, "inverse-sqrt", {"timescale": 10_000}),
        ("warmup_stable_decay", {"num_decay_steps": 9}, "wsd", {"form": "cosine", "decay_steps": 9}),
    ],
)  # fmt: skip
def test_schedules_by_the_trainers_names_are_its_own(
    build: Any, theirs: str, options: dict[str, Any], name: str, values: dict[str, Any]
) -> None:
    """The rows of the table in docs/from-trainer.md: N steps there are the first N of N + 1 here."""
    found = by_torch(lambda o: get_scheduler(theirs, o, 0, 30, scheduler_specific_kwargs=options), 30)
    ours = factors(build, name, 31, warmup_ratio=0, **values)
    assert ours[:30] == pytest.approx(found, abs=1e-12)


def test_restarts_are_those_of_torch_for_each_cycle(build: Any) -> None:
    """torch's cycle of T updates never reaches its floor: ours of T + 1 does, with the same values before."""
    length = 10
    one = by_torch(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, length - 1, eta_min=0.1), length - 1
    )
    found = factors(build, "cosine-restarts", 3 * length, warmup_ratio=0, floor_ratio=0.1, cycles=3)
    assert found == pytest.approx([*one, 0.1] * 3, abs=1e-12)


def test_a_cosine_starts_again_where_an_adapter_is_reset(build: Any) -> None:
    """Each cycle is that of a run which ends there."""
    found = factors(build, "cosine-restarts", 60, warmup_steps=5, floor_ratio=0.1, restarts=(20, 45), peak_ratio=0.5)
    first = factors(build, "cosine-restarts", 20, warmup_steps=5, floor_ratio=0.1, cycles=1)
    assert found[:20] == pytest.approx(first, abs=1e-12)
    for start, end, peak in ((20, 45, 0.5), (45, 60, 0.25)):
        one = factors(build, "cosine-restarts", end - start, warmup_ratio=0, cycles=1)
        assert found[start:end] == pytest.approx([0.1 + 0.9 * peak * each for each in one], abs=1e-12)


def test_growing_cycles_get_longer_and_their_peaks_lower(build: Any) -> None:
    found = factors(build, "cosine-restarts", 70, warmup_ratio=0, cycles=3, growth=2.0, peak_ratio=0.5)
    starts = [k for k in range(1, 70) if found[k] > found[k - 1]]
    assert starts == [10, 30]
    assert [found[0], *(found[k] for k in starts)] == pytest.approx([1.0, 0.5, 0.25])
    assert [found[9], found[29], found[69]] == pytest.approx([0.0] * 3)


def test_the_inverse_root_is_that_of_the_transformer(build: Any) -> None:
    """Section 5.3 of https://arxiv.org/abs/1706.03762, as a share of its peak, with the same warm-up."""
    warmup, total = 16, 200
    found = factors(build, "inverse-sqrt", total, warmup_steps=warmup - 1)
    assert found == pytest.approx(
        [
            min((k + 1) ** -0.5, (k + 1) * warmup**-1.5) / warmup**-0.5
            if k < warmup
            else math.sqrt((warmup - 1) / (warmup - 1 + k - warmup + 1))
            for k in range(total)
        ],
        abs=1e-12,
    )
    assert factors(build, "inverse-sqrt", 20, warmup_ratio=0, timescale=5)[5] == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(("form", "middle"), [("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - math.sqrt(0.5))])
def test_wsd_is_constant_and_then_falls(build: Any, form: str, middle: float) -> None:
    found = factors(build, "wsd", 101, warmup_steps=10, decay_steps=20, form=form)
    assert found[10:81] == [1.0] * 71
    assert found[90] == pytest.approx(middle)
    assert found[100] == pytest.approx(0.0)


def test_relora_follows_one_cosine_and_rises_again_after_each_reset(build: Any) -> None:
    plain = factors(build, "cosine-restarts", 100, warmup_ratio=0, cycles=1, floor_ratio=0.1)
    found = factors(build, "relora", 100, warmup_ratio=0, reset_steps=30, restart_steps=4)
    ramps = {30 * n + i: (i + 1) / 5 for n in (1, 2, 3) for i in range(4)}
    assert found == pytest.approx([each * ramps.get(k, 1.0) for k, each in enumerate(plain)], abs=1e-12)


def test_a_warmup_of_two_phases_holds_a_small_rate_and_then_rises(build: Any) -> None:
    found = factors(build, "linear", 50, hold_steps=5, hold_ratio=0.1, warmup_steps=8)
    assert found[:5] == [0.1] * 5
    assert found[5:14] == pytest.approx([0.1 + 0.9 * (i + 1) / 9 for i in range(9)])
    assert found[13] == 1.0 > found[14]


@given(
    st.sampled_from(FLOORED),
    st.integers(2, 300),
    st.floats(0, 0.99),
    st.floats(0.01, 1),
    st.integers(0, 5),
)
@relaxed
def test_any_run_has_its_peak_and_ends_at_its_floor(
    build: Any, name: str, total: int, ratio: float, floor: float, hold: int
) -> None:
    hold = min(hold, total - 2)
    extra = {"cosine-restarts": {"cycles": 1}, "relora": {"reset_steps": 10_000}}.get(name, {})
    values = {"warmup_ratio": ratio, "floor_ratio": floor, "hold_steps": hold, "hold_ratio": 0.01, **extra}
    schedule = build(name, values, total_steps=total)
    found = [schedule(k) for k in range(total)]
    peak = found.index(1.0)
    assert found[: peak + 1] == sorted(found[: peak + 1])
    assert found[peak:] == pytest.approx(sorted(found[peak:], reverse=True), abs=1e-12)
    assert min(found) > 0
    assert found[-1] == pytest.approx(floor, abs=1e-12)
    assert schedule(total + 100) == found[-1]


@pytest.mark.parametrize("name", [*FLOORED, "inverse-sqrt"])
def test_a_run_of_one_update_trains_at_the_base_rate(build: Any, name: str) -> None:
    values = {"cycles": 1} if name == "cosine-restarts" else {}
    assert build(name, values, total_steps=1)(0) == 1.0


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "linear",
            {"warmup_steps": 19},
            r"warmup_steps=19 leaves nothing of a run of 20 updates; set it to 18 at most",
        ),
        ("wsd", {"hold_steps": 30}, r"hold_steps=30 leaves nothing of a run of 20 updates; set it to 18 at most"),
        ("linear", {"hold_steps": 9, "warmup_steps": 10}, r"warmup_steps=10 .* set it to 9 at most"),
        (
            "wsd",
            {"warmup_steps": 9, "decay_steps": 11},
            r"decay_steps=11 does not fit into the 10 updates .* 10 at most",
        ),
        ("cosine-restarts", {"cycles": 15}, r"cycles=15 .* fewer than 2 of the 19 updates"),
        (
            "cosine-restarts",
            {"restarts": (5, 19)},
            r"restarts=\[5, 19\] gives a cycle fewer than 2 updates of a run of 20",
        ),
    ],
)
def test_what_does_not_fit_into_the_run_is_refused(build: Any, name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build(name, values, total_steps=20)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exponential", {"floor_ratio": 0}),
        ("relora", {"reset_steps": 5, "restart_steps": 5}),
        ("polynomial", {"power": 0}),
        ("wsd", {"form": "steep"}),
        ("cosine-restarts", {"growth": 0.5}),
        ("cosine-restarts", {"restarts": (20, 10)}),
        ("cosine-restarts", {"restarts": (10, 10)}),
        ("cosine-restarts", {"restarts": (0, 10)}),
        ("cosine-restarts", {"restarts": (10,), "cycles": 3}),
        ("linear", {"hold_ratio": 0}),
    ],
)
def test_values_out_of_bounds_are_refused(build: Any, name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build(name, values, total_steps=20)
