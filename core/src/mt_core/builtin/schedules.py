"""Learning-rate schedules: the factor that every group's base rate is multiplied by, as a pure function of the update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import MtConfig, UsageError

if TYPE_CHECKING:
    from mt_core.protocols import Schedule


class ConstantConfig(MtConfig):
    """A constant rate, after a warm-up if one is asked for."""

    warmup_ratio: float = Field(0.0, ge=0, lt=1, description="linear warm-up (share of all updates)")
    warmup_steps: int | None = Field(None, ge=0, description="linear warm-up (updates); wins over warmup_ratio")


class CosineConfig(MtConfig):
    """Half a cosine from the peak down to the floor (https://arxiv.org/abs/1608.03983, without restarts)."""

    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="linear warm-up (share of all updates)")
    warmup_steps: int | None = Field(None, ge=0, description="linear warm-up (updates); wins over warmup_ratio")
    floor_ratio: float = Field(0.1, ge=0, le=1, description="rate of the last update (share of the base rate)")


def build_constant(config: ConstantConfig, *, total_steps: int) -> Schedule:
    """1 after the warm-up."""
    warmup = _warmup_steps(config, total_steps)
    return lambda k: _ramp(k, warmup)


def build_cosine(config: CosineConfig, *, total_steps: int) -> Schedule:
    """1 at update ``warmup`` (0-based), ``floor_ratio`` at ``total_steps - 1`` and after.

    A run of one update has no time to decay: its factor is 1. Raises ``UsageError`` when the warm-up fills the run.
    """
    warmup = _warmup_steps(config, total_steps)
    decay_steps = total_steps - 1 - warmup

    def factor(k: int) -> float:
        if k <= warmup:
            return _ramp(k, warmup)
        progress = min(1.0, (k - warmup) / decay_steps)
        return config.floor_ratio + (1 - config.floor_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor


def _ramp(k: int, warmup: int) -> float:
    """1 from update ``warmup`` on; the first of ``warmup`` updates before it already has a rate above 0."""
    return min(1.0, (k + 1) / (warmup + 1))


def _warmup_steps(config: ConstantConfig | CosineConfig, total_steps: int) -> int:
    """Updates below the peak; at least the last update comes after the peak, if there is more than one."""
    room = max(0, total_steps - 2)
    if config.warmup_steps is None:
        return min(round(config.warmup_ratio * total_steps), room)
    if config.warmup_steps > room:
        raise UsageError(
            f"schedule.warmup_steps={config.warmup_steps} leaves nothing of a run of {total_steps} updates; "
            f"set it to {room} at most, or use schedule.warmup_ratio, a share of the run"
        )
    return config.warmup_steps
