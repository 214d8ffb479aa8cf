"""Learning-rate schedules: each a pure function of the update, from 1 at the peak to its floor at the last update.

A warm-up of any of them, in one phase or two, is that of ``mt_core.WarmupOptions``. ``done`` is the number of updates since
the peak, ``length`` that of the last one; both are 0 where the peak is the last update.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from mt_core import UsageError, WarmupOptions, peak_update, warmup_schedule

if TYPE_CHECKING:
    from mt_core import Schedule


class DecayConfig(WarmupOptions):
    """A warm-up, and a decay down to a floor."""

    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="linear warm-up (share of all updates)")
    floor_ratio: float = Field(0.0, ge=0, le=1, description="rate of the last update (share of the base rate)")


class PolynomialConfig(DecayConfig):
    """A power of what is left of the run."""

    power: float = Field(2.0, gt=0, description="exponent; 1 is linear")


class ExponentialConfig(DecayConfig):
    """Equal shares of the rate go in every update, so that the floor cannot be 0."""

    floor_ratio: float = Field(0.01, gt=0, le=1, description="rate of the last update (share of the base rate)")


class InverseSqrtConfig(WarmupOptions):
    """One over the root of the updates: no end is planned, so there is no floor."""

    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="linear warm-up (share of all updates)")
    timescale: int | None = Field(
        None, gt=0, description="updates after the peak in which the rate falls to 0.707; default those of the warm-up"
    )


class RestartsConfig(DecayConfig):
    """Cosines that start again."""

    cycles: int = Field(
        4, gt=0, le=10_000, description="cosines after the warm-up, equally long unless growth says otherwise"
    )
    growth: float = Field(1.0, ge=1, le=10, description="how much longer each cycle is than the one before (factor)")
    peak_ratio: float = Field(1.0, gt=0, le=1, description="peak of each cycle as a share of that of the one before")
    restarts: tuple[int, ...] = Field(
        (), description="updates after which a cosine starts again, as an adapter is reset there; instead of cycles"
    )

    @model_validator(mode="after")
    def _one_plan(self) -> Self:
        if self.restarts and (self.cycles, self.growth) != (4, 1.0):
            raise ValueError("restarts says where each cycle begins; leave out cycles and growth")
        if list(self.restarts) != sorted({each for each in self.restarts if each > 0}):
            raise ValueError(f"restarts={list(self.restarts)} are not in order, each once and above 0; sort them")
        return self


class ReLoraConfig(DecayConfig):
    """One cosine, with a short warm-up after each reset of an adapter."""

    floor_ratio: float = Field(0.1, ge=0, le=1, description="rate at the end of the cosine (share of the base rate)")
    reset_steps: int = Field(1000, gt=0, description="updates between resets, as the adapter has them")
    restart_steps: int = Field(50, ge=0, description="linear warm-up after each reset (updates)")

    @model_validator(mode="after")
    def _ramp_fits(self) -> Self:
        if self.restart_steps >= self.reset_steps:
            raise ValueError(
                f"restart_steps={self.restart_steps} leaves nothing of reset_steps={self.reset_steps}; set it to"
                f" {self.reset_steps - 1} at most"
            )
        return self


class WsdConfig(DecayConfig):
    """Warm-up, stable, decay: constant until a last part."""

    decay_ratio: float = Field(0.2, gt=0, le=1, description="length of the decay (share of all updates)")
    decay_steps: int | None = Field(None, gt=0, description="length of the decay (updates); wins over decay_ratio")
    form: Literal["linear", "cosine", "sqrt"] = Field(
        "linear", description="form of the decay; sqrt is 1 minus the root of its progress"
    )


def build_linear(config: DecayConfig, *, total_steps: int) -> Schedule:
    """A straight line from the peak to the floor."""
    return warmup_schedule(
        config, total_steps, lambda done, length: _above(config.floor_ratio, 1 - _share(done, length))
    )


def build_polynomial(config: PolynomialConfig, *, total_steps: int) -> Schedule:
    """``(1 - progress) ** power`` above the floor."""
    return warmup_schedule(
        config,
        total_steps,
        lambda done, length: _above(config.floor_ratio, (1 - _share(done, length)) ** config.power),
    )


def build_exponential(config: ExponentialConfig, *, total_steps: int) -> Schedule:
    """``floor_ratio ** progress``."""
    return warmup_schedule(config, total_steps, lambda done, length: config.floor_ratio ** _share(done, length))


def build_inverse_sqrt(config: InverseSqrtConfig, *, total_steps: int) -> Schedule:
    """``sqrt(s / (s + done))``, s the timescale (https://arxiv.org/abs/1706.03762, section 5.3, with s the warm-up)."""

    def after(done: int, length: int) -> float:
        scale = config.timescale or max(1, total_steps - 1 - length)
        return math.sqrt(scale / (scale + done))

    return warmup_schedule(config, total_steps, after)


def build_wsd(config: WsdConfig, *, total_steps: int) -> Schedule:
    """1 until the decay begins, the floor at the last update (https://arxiv.org/abs/2404.06395, section 4.1).

    Raises ``UsageError`` for a decay that is longer than what the warm-up leaves.
    """
    room, wanted = total_steps - 1 - peak_update(config, total_steps), config.decay_steps
    if wanted is not None and wanted > room:
        raise UsageError(
            f"schedule.decay_steps={wanted} does not fit into the {room} updates after the warm-up of a run of {total_steps};"
            f" set it to {room} at most, or use schedule.decay_ratio, a share of the run"
        )
    decay = min(room, max(1, round(config.decay_ratio * total_steps)) if wanted is None else wanted)

    def after(done: int, length: int) -> float:
        return _above(config.floor_ratio, _FORMS[config.form](_share(max(0, done - length + decay), decay)))

    return warmup_schedule(config, total_steps, after)


def build_restarts(config: RestartsConfig, *, total_steps: int) -> Schedule:
    """Each cycle goes from its peak to the floor; the last one ends with the run (https://arxiv.org/abs/1608.03983).

    Raises ``UsageError`` for a cycle of fewer than two updates.
    """
    peak = peak_update(config, total_steps)
    length = total_steps - 1 - peak
    starts = [0, *(each - peak for each in config.restarts), length + 1]
    if not config.restarts:
        starts = _cycle_starts(config, length + 1)
    if total_steps > 1 and min(end - start for start, end in pairwise(starts)) < 2:
        raise _too_short(config, peak, total_steps)

    def after(done: int, length: int) -> float:
        number = bisect_right(starts, done, hi=len(starts) - 1) - 1
        share = _share(done - starts[number], starts[number + 1] - starts[number] - 1)
        return _above(config.floor_ratio, config.peak_ratio**number * _cosine(share))

    return warmup_schedule(config, total_steps, after)


def build_relora(config: ReLoraConfig, *, total_steps: int) -> Schedule:
    """A cosine over the whole run, times a ramp after each reset (https://arxiv.org/abs/2307.05695, section 3)."""
    cosine = warmup_schedule(
        config, total_steps, lambda done, length: _above(config.floor_ratio, _cosine(_share(done, length)))
    )

    def factor(k: int) -> float:
        since = k % config.reset_steps if k >= config.reset_steps else config.restart_steps
        return cosine(k) * min(1.0, (since + 1) / (config.restart_steps + 1))

    return factor


def _cycle_starts(config: RestartsConfig, updates: int) -> list[int]:
    """First updates of the cycles, and one past the last."""
    sizes = [config.growth**number for number in range(config.cycles)]
    return [round(updates * sum(sizes[:number]) / sum(sizes)) for number in range(config.cycles + 1)]


def _too_short(config: RestartsConfig, peak: int, total_steps: int) -> UsageError:
    if config.restarts:
        return UsageError(
            f"schedule.restarts={list(config.restarts)} gives a cycle fewer than 2 updates of a run of {total_steps}; they go from"
            f" {peak + 2} to {total_steps - 2}, 2 or more apart"
        )
    return UsageError(
        f"schedule.cycles={config.cycles} (growth {config.growth:g}) gives a cycle fewer than 2 of the {total_steps - peak} updates"
        " after the warm-up; set fewer cycles, or less growth"
    )


def _share(done: int, length: int) -> float:
    return done / length if length else 0.0


def _above(floor: float, height: float) -> float:
    return floor + (1 - floor) * height


def _cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


_FORMS: dict[str, Callable[[float], float]] = {
    "linear": lambda share: 1 - share,
    "cosine": _cosine,
    "sqrt": lambda share: 1 - math.sqrt(share),
}
"""Forms of WSD's decay; ``sqrt`` is that of https://arxiv.org/abs/2405.18392."""
