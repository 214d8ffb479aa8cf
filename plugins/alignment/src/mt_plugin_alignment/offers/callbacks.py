"""Callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mt_core import ANY, Component

from ..alarms.callback import RolloutAlarms, RolloutAlarmsConfig, alarm_files

CALLBACKS: tuple[Component, ...] = (
    Component(
        name="rollout-alarms",
        config=RolloutAlarmsConfig,
        build=RolloutAlarms,
        writes=alarm_files,
        summary="warns once about answers that a run learns from: no spread, no end, length, reward up while another falls",
        source="https://arxiv.org/abs/2210.10760",
        layouts=ANY,
    ),
)

ONLINE_DEFAULTS: Mapping[str, Any] = {"callbacks.rollout_alarms": {}, "checkpoint.best": "eval_reward:max"}
"""``run_defaults`` of a run that learns from answers of its own: it has alarms, unless it says ``callbacks: none``, and its held-out
prompts have a reward and no loss."""


def online_limits(config: Any) -> dict[str, str]:
    """Return what a run that learns from answers of its own cannot have."""
    return {"eval-loss": "its held-out rows are prompts, which have a reward and no loss"}
