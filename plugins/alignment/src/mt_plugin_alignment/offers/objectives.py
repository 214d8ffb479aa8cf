"""Objectives over preferences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mt_core import ANY, MtConfig, ObjectiveComponent

from ..losses.cpo import CpoConfig
from ..losses.orpo import OrpoConfig
from ..losses.simpo import SimpoConfig
from ..objectives.config import (
    AotConfig,
    CpoObjectiveConfig,
    DpoConfig,
    KtoConfig,
    OrpoObjectiveConfig,
    PairOptions,
    RewardConfig,
    SimpoObjectiveConfig,
    dpo_parts,
    own_part,
)
from .critic_free import CRITIC_FREE
from .critics import CRITICS
from .online import ONLINE

if TYPE_CHECKING:
    from torch import nn

    from mt_core import Template, Tokenizer

    from ..objectives.aot import AotObjective
    from ..objectives.kto import KtoObjective
    from ..objectives.preference import PreferenceObjective
    from ..objectives.reward import RewardObjective


def _pairs(
    config: PairOptions, *, tokenizer: Tokenizer, template: Template, parts: Sequence[Any]
) -> PreferenceObjective:
    from ..objectives.preference import PreferenceObjective

    weights = config.weights if isinstance(config, DpoConfig) else (1.0,)
    return PreferenceObjective(tokenizer, template, config, parts, weights)


def _alone(
    name: str, config: type[PairOptions], options: type[MtConfig], summary: str, source: str
) -> ObjectiveComponent:
    """An objective of one loss, which has its name."""
    return ObjectiveComponent(
        name=name,
        config=config,
        build=_pairs,
        parts=partial(own_part, name, options=options),
        summary=summary,
        source=source,
        layouts=ANY,
    )


def _kto(config: KtoConfig, *, tokenizer: Tokenizer, template: Template) -> KtoObjective:
    from ..objectives.kto import KtoObjective

    return KtoObjective(tokenizer, template, config)


def _aot(config: AotConfig, *, tokenizer: Tokenizer, template: Template) -> AotObjective:
    from ..objectives.aot import AotObjective

    return AotObjective(tokenizer, template, config)


def _reward(config: RewardConfig, *, tokenizer: Tokenizer, template: Template) -> RewardObjective:
    from ..objectives.reward import PairwiseReward, ScoredReward

    return (PairwiseReward if config.rows == "pairs" else ScoredReward)(tokenizer, template, config)


def _score_head(config: RewardConfig, width: int) -> nn.Module:
    from ..objectives.score_head import ScoreHead

    return ScoreHead(width)


OBJECTIVES: tuple[ObjectiveComponent, ...] = (
    ObjectiveComponent(
        name="dpo",
        config=DpoConfig,
        build=_pairs,
        parts=dpo_parts,
        summary="DPO: pairs against the model of step 0; --objective.loss chooses another loss of its family",
        source="https://arxiv.org/abs/2305.18290",
        layouts=ANY,
    ),
    ObjectiveComponent(
        name="kto",
        config=KtoConfig,
        build=_kto,
        summary="single answers labelled desirable or not, against a baseline of the step; a pair counts as two answers",
        source="https://arxiv.org/abs/2402.01306",
        layouts=ANY,
    ),
    ObjectiveComponent(
        name="aot",
        config=AotConfig,
        build=_aot,
        summary="pairs as distributions: sorts two sets of log-ratios and compares those of equal rank",
        source="https://arxiv.org/abs/2406.05882",
        layouts=ANY,
    ),
    *CRITIC_FREE,
    *CRITICS,
    ObjectiveComponent(
        name="reward",
        config=RewardConfig,
        build=_reward,
        modules=_score_head,
        head="own",
        summary="a score for each answer, from pairs (Bradley-Terry) or from scores that people gave",
        source="https://arxiv.org/abs/2203.02155",
        layouts=ANY,
    ),
    _alone(
        "cpo",
        CpoObjectiveConfig,
        CpoConfig,
        "pairs by their log-probabilities, and likelihood, without a reference",
        "https://arxiv.org/abs/2401.08417",
    ),
    _alone(
        "simpo",
        SimpoObjectiveConfig,
        SimpoConfig,
        "pairs by their mean log-probabilities and a margin, without a reference",
        "https://arxiv.org/abs/2405.14734",
    ),
    _alone(
        "orpo",
        OrpoObjectiveConfig,
        OrpoConfig,
        "pairs by their odds, beside likelihood, without a reference",
        "https://arxiv.org/abs/2403.07691",
    ),
    *ONLINE,
)
