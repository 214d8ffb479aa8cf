"""Objectives that learn from some of the model's own answers, chosen by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import ANY, ObjectiveComponent

from ..objectives.config import dpo_parts
from ..objectives.online_config import OnlineDpoConfig, RejectionConfig
from .callbacks import ONLINE_DEFAULTS, online_limits
from .rewards import require_rewards

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from ..objectives.online_pairs import OnlineDpoObjective
    from ..objectives.rejection import RejectionObjective


def _rejection(
    config: RejectionConfig,
    *,
    tokenizer: Tokenizer,
    template: Template,
    rewards: Mapping[str, Any],
    sampler: Any = None,
) -> RejectionObjective:
    from ..objectives.rejection import RejectionObjective

    require_rewards(rewards, "rejection chooses answers by rewards")
    return RejectionObjective(tokenizer, template, config, rewards, sampler)


def _online_dpo(
    config: OnlineDpoConfig,
    *,
    tokenizer: Tokenizer,
    template: Template,
    parts: Sequence[Any],
    rewards: Mapping[str, Any],
    sampler: Any = None,
) -> OnlineDpoObjective:
    from ..objectives.online_pairs import OnlineDpoObjective

    require_rewards(rewards, "online-dpo chooses answers by rewards")
    return OnlineDpoObjective(tokenizer, template, config, rewards, parts, sampler)


ONLINE: tuple[ObjectiveComponent, ...] = (
    ObjectiveComponent(
        name="rejection",
        config=RejectionConfig,
        build=_rejection,
        uses=("reward", "sampler"),
        run_defaults=ONLINE_DEFAULTS,
        limits=online_limits,
        summary="the best of several answers of the model, learned as sft does: RAFT, best-of-n, RFT",
        source="https://arxiv.org/abs/2304.06767",
        layouts=ANY,
    ),
    ObjectiveComponent(
        name="online-dpo",
        config=OnlineDpoConfig,
        build=_online_dpo,
        parts=dpo_parts,
        uses=("reward", "sampler"),
        run_defaults=ONLINE_DEFAULTS,
        limits=online_limits,
        summary="the best and the worst of several answers of the model as a pair, with any loss of dpo",
        source="https://arxiv.org/abs/2402.04792",
        layouts=ANY,
    ),
)
