"""Warm-up of the learning rate, the one that all schedules share. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field

from mt_core.config.base import MtConfig
from mt_core.errors import UsageError


class WarmupOptions(MtConfig):
    """Options of a schedule with a warm-up; subclass it to add options of the part after the peak.

    With ``hold_steps`` the warm-up has two phases: a small rate that does not change, then the ramp.
    """

    warmup_ratio: float = Field(0.0, ge=0, lt=1, description="linear warm-up (share of all updates)")
    warmup_steps: int | None = Field(None, ge=0, description="linear warm-up (updates); wins over warmup_ratio")
    hold_steps: int = Field(0, ge=0, description="updates at hold_ratio before the linear warm-up")
    hold_ratio: float = Field(0.1, gt=0, le=1, description="rate of these updates (share of the base rate)")


AfterPeak = Callable[[int, int], float]
"""(updates since the peak, how many there are in all) -> factor; 1 at (0, n). The first never exceeds the second."""


def warmup_schedule(options: WarmupOptions, total_steps: int, after: AfterPeak) -> Callable[[int], float]:
    """Return a schedule: the warm-up, the peak, then ``after(done, n)``. The last update is at ``after(n, n)``, and so are all later ones.

    A run of one update trains at the base rate. Raises ``UsageError`` when the warm-up fills the run.
    """
    held, ramp = _phases(options, total_steps)
    start, peak = (options.hold_ratio if held else 0.0), held + ramp
    length = max(0, total_steps - 1 - peak)

    def factor(k: int) -> float:
        if k < held:
            return options.hold_ratio
        if k < peak:
            return start + (1 - start) * (k - held + 1) / (ramp + 1)
        return after(min(k - peak, length), length)

    return factor


def peak_update(options: WarmupOptions, total_steps: int) -> int:
    """Return the first update at the base rate. Raises ``UsageError`` as ``warmup_schedule`` does."""
    return sum(_phases(options, total_steps))


def _phases(options: WarmupOptions, total_steps: int) -> tuple[int, int]:
    """Updates held, and updates on the ramp; at least the last update comes after the peak, if there is more than one."""
    room, held = max(0, total_steps - 2), options.hold_steps
    if held > room:
        raise _too_long("schedule.hold_steps", held, room, total_steps, "")
    if options.warmup_steps is None:
        return held, min(round(options.warmup_ratio * total_steps), room - held)
    if held + options.warmup_steps > room:
        hint = ", or use schedule.warmup_ratio, a share of the run"
        raise _too_long("schedule.warmup_steps", options.warmup_steps, room - held, total_steps, hint)
    return held, options.warmup_steps


def _too_long(key: str, steps: int, most: int, total_steps: int, hint: str) -> UsageError:
    return UsageError(f"{key}={steps} leaves nothing of a run of {total_steps} updates; set it to {most} at most{hint}")
