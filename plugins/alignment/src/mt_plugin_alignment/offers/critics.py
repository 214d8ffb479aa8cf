"""Objectives that learn from rewards with a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mt_core import ANY, ObjectiveComponent

from ..objectives.ppo_config import PpoConfig
from .callbacks import ONLINE_DEFAULTS, online_limits
from .rewards import require_rewards

if TYPE_CHECKING:
    from torch import nn

    from mt_core import Template, Tokenizer

    from ..objectives.ppo import PpoObjective


def _ppo(
    config: PpoConfig, *, tokenizer: Tokenizer, template: Template, rewards: Mapping[str, Any], sampler: Any = None
) -> PpoObjective:
    from ..objectives.ppo import PpoObjective

    require_rewards(rewards, "ppo learns from rewards")
    return PpoObjective(tokenizer, template, config, rewards, sampler)


def _value_head(config: PpoConfig, width: int) -> nn.Module:
    from ..objectives.value_head import ValueHead

    return ValueHead(width)


CRITICS: tuple[ObjectiveComponent, ...] = (
    ObjectiveComponent(
        name="ppo",
        config=PpoConfig,
        build=_ppo,
        uses=("reward", "sampler"),
        run_defaults=ONLINE_DEFAULTS,
        limits=online_limits,
        modules=_value_head,
        summary="PPO: answers of the model, with a critic trained beside it that values each token",
        source="https://arxiv.org/abs/1707.06347",
        layouts=ANY,
    ),
)
