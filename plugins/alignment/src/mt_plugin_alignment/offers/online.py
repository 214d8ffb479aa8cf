"""Objectives that learn from some of the model's own answers, chosen by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mt_core import ANY, ObjectiveComponent, UsageError

from ..objectives.config import dpo_parts
from ..objectives.online_config import OnlineDpoConfig, RejectionConfig
from .callbacks import WATCHED

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

    _require(rewards, "rejection")
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

    _require(rewards, "online-dpo")
    return OnlineDpoObjective(tokenizer, template, config, rewards, parts, sampler)


def _require(rewards: Mapping[str, Any], name: str) -> None:
    """Raise ``UsageError`` where a run names no rewards."""
    if not rewards:
        raise UsageError(
            f"{name} chooses answers by rewards: name one or more with --rewards NAME (mt-plugins list --components)"
        )


ONLINE: tuple[ObjectiveComponent, ...] = (
    ObjectiveComponent(
        name="rejection",
        config=RejectionConfig,
        build=_rejection,
        uses=("reward", "sampler"),
        run_defaults=WATCHED,
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
        run_defaults=WATCHED,
        summary="the best and the worst of several answers of the model as a pair, with any loss of dpo",
        source="https://arxiv.org/abs/2402.04792",
        layouts=ANY,
    ),
)
