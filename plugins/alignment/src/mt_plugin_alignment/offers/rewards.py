"""Rewards, and the refusal of a run without any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mt_core import ANY, Component, UsageError

from ..reward_functions.models import AdapterReward, AdapterRewardConfig, ModelReward, ModelRewardConfig
from ..reward_functions.python_file import PythonConfig, PythonReward
from ..reward_functions.service_config import HttpConfig
from ..reward_functions.texts import Exact, ExactConfig, Length, LengthConfig, Pattern, PatternConfig

if TYPE_CHECKING:
    from ..reward_functions.service import HttpReward


def _ask_service(config: HttpConfig) -> HttpReward:
    from ..reward_functions.service import HttpReward  # http and ssl load here, not when plugins are listed

    return HttpReward(config)


REWARDS: tuple[Component, ...] = (
    Component(
        name="pattern",
        config=PatternConfig,
        build=Pattern,
        summary="whether the answer matches a regular expression, or the share that it covers",
        layouts=ANY,
    ),
    Component(
        name="exact", config=ExactConfig, build=Exact, summary="1 if the answer is the row's, 0 otherwise", layouts=ANY
    ),
    Component(
        name="length",
        config=LengthConfig,
        build=Length,
        summary="a penalty for answers that are too long",
        source="https://arxiv.org/abs/2503.14476",
        layouts=ANY,
    ),
    Component(
        name="python",
        config=PythonConfig,
        build=PythonReward,
        summary="the score of a function in your Python file, which is executed",
        layouts=ANY,
    ),
    Component(
        name="model",
        config=ModelRewardConfig,
        build=ModelReward,
        summary="the score of a trained reward model",
        source="https://arxiv.org/abs/2203.02155",
        layouts=ANY,
    ),
    Component(
        name="adapter",
        config=AdapterRewardConfig,
        build=AdapterReward,
        summary="the score of a reward adapter on the run's own base weights, without a second model",
        layouts=ANY,
    ),
    Component(
        name="http",
        config=HttpConfig,
        build=_ask_service,
        summary="the score of an HTTP service, to which answers are posted as JSON",
        layouts=ANY,
    ),
)


def require_rewards(rewards: Mapping[str, Any], use: str) -> None:
    """Raise ``UsageError`` where a run names no rewards; ``use`` says what its objective does with them."""
    if not rewards:
        raise UsageError(f"{use}: name one or more with --rewards NAME (mt-plugins list --components)")
