"""Learning-rate schedules: the factor that every group's base rate is multiplied by, as a pure function of the update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import WarmupOptions, warmup_schedule

if TYPE_CHECKING:
    from mt_core.protocols import Schedule


class ConstantConfig(WarmupOptions):
    """A constant rate, after a warm-up if one is asked for."""


class CosineConfig(WarmupOptions):
    """Half a cosine from the peak down to the floor (https://arxiv.org/abs/1608.03983, without restarts)."""

    warmup_ratio: float = Field(0.03, ge=0, lt=1, description="linear warm-up (share of all updates)")
    floor_ratio: float = Field(0.1, ge=0, le=1, description="rate of the last update (share of the base rate)")


def build_constant(config: ConstantConfig, *, total_steps: int) -> Schedule:
    """1 after the warm-up."""
    return warmup_schedule(config, total_steps, lambda done, length: 1.0)


def build_cosine(config: CosineConfig, *, total_steps: int) -> Schedule:
    """1 at the peak, ``floor_ratio`` at ``total_steps - 1`` and after.

    A run of one update has no time to decay: its factor is 1. Raises ``UsageError`` when the warm-up fills the run.
    """

    def after(done: int, length: int) -> float:
        if not done:
            return 1.0
        return config.floor_ratio + (1 - config.floor_ratio) * 0.5 * (1 + math.cos(math.pi * done / length))

    return warmup_schedule(config, total_steps, after)
