"""Lower rates where a figure has stopped to improve, as ``torch.optim.lr_scheduler.ReduceLROnPlateau`` has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from mt_core import CallbackContext, Control

from .stopping import FigureConfig, Goal


class PlateauConfig(FigureConfig):
    """When rates are lowered, and by how much."""

    factor: float = Field(0.1, gt=0, lt=1, description="what all rates are multiplied by each time")
    patience: int = Field(
        10, ge=0, description="times in a row that the figure may come without a new best before they are"
    )
    threshold: float = Field(1e-4, ge=0, description="least change that counts as better, as a share of the best")
    cooldown: int = Field(0, ge=0, description="times after a lowering at which patience is not used up")
    least: float = Field(
        0.0, ge=0, lt=1, description="least that the schedule's rates are multiplied by, however often they are lowered"
    )


class Plateau:
    """Asks for lower rates when the figure has not become better for more than ``patience`` times."""

    def __init__(self, config: PlateauConfig) -> None:
        self._config = config
        self._goal: Goal | None = None
        self._before = ""
        self._best, self._waited, self._resting = math.inf, 0, 0
        self._rate = 1.0

    def on_run_start(self, context: CallbackContext) -> Control:
        """Find out what to look at, and go on with the rates of the checkpoint."""
        self._goal = Goal.of(context.config, self._config.metric, self._config.mode)
        self._goal.check(context, "plateau")
        if self._before not in ("", str(self._goal)):
            self._best, self._waited = math.inf, 0
        return Control(rate=self._rate)

    def on_step_end(self, context: CallbackContext) -> Control | None:
        """Look at the figure, where the step has it; one that is no number counts as worse."""
        assert self._goal is not None, "on_run_start comes first"
        assert context.record is not None, "a step that has ended has a record"
        value = self._goal.value(context.record, "plateau")
        if value is None:
            return None
        if self._is_better(value):
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._resting:
            self._resting, self._waited = self._resting - 1, 0
        if self._waited <= self._config.patience:
            return None
        return self._lower()

    def _is_better(self, value: float) -> bool:
        """Return whether a figure, of which less is better, is below the best by more than the threshold."""
        if not math.isfinite(self._best):
            return value < math.inf
        return value < self._best - self._config.threshold * abs(self._best)

    def _lower(self) -> Control | None:
        assert self._goal is not None, "on_run_start comes first"
        waited, self._waited, self._resting = self._waited, 0, self._config.cooldown
        lower = max(self._rate * self._config.factor, self._config.least)
        if lower >= self._rate:
            return None
        self._rate = lower
        best = self._goal.sign * self._best
        return Control(
            rate=lower,
            say=f"{self._goal.metric} was not better than {best:.4f} for {waited} times; rates are {lower:g} of the schedule's from now on",
        )

    def state_dict(self) -> dict[str, Any]:
        """The rates asked for, the best so far, and how long ago it was."""
        best = self._best if math.isfinite(self._best) else None
        return {
            "rate": self._rate,
            "best": best,
            "waited": self._waited,
            "resting": self._resting,
            "goal": str(self._goal),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on waiting, unless it is for another figure by then."""
        self._rate, self._waited, self._resting = state["rate"], state["waited"], state["resting"]
        self._best, self._before = math.inf if state["best"] is None else state["best"], state["goal"]
