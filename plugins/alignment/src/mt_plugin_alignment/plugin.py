"""Entry point of the alignment plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import Component, Kind, ObjectiveComponent, hookimpl

from .offers.callbacks import CALLBACKS
from .offers.losses import LOSSES
from .offers.objectives import OBJECTIVES
from .offers.rewards import REWARDS
from .offers.samplers import SAMPLERS


@hookimpl
def mt_kinds() -> list[Kind]:
    """Losses of pairs, of which objectives are made; rewards and samplers, which a run names."""
    return [
        Kind(
            name="preference_loss",
            hook="mt_preference_losses",
            slot="part",
            returns="mt_plugin_alignment:PreferenceLoss",
            template="mt_plugin_alignment:templates/preference-loss",
            conformance="mt_conformance:BasePreferenceLossConformance",
            summary="a loss of a chosen and a rejected answer",
        ),
        Kind(
            name="reward",
            hook="mt_rewards",
            slot="many",
            key="rewards",
            returns="mt_plugin_alignment:Reward",
            template="mt_plugin_alignment:templates/reward",
            conformance="mt_conformance:BaseRewardConformance",
            summary="scores answers that the model generates",
        ),
        Kind(
            name="sampler",
            hook="mt_samplers",
            slot="one",
            returns="mt_plugin_alignment:Sampler",
            template="mt_plugin_alignment:templates/sampler",
            conformance="mt_conformance:BaseSamplerConformance",
            summary="generates the answers that a run learns from",
        ),
    ]


@hookimpl
def mt_rewards() -> list[Component]:
    return list(REWARDS)


@hookimpl
def mt_samplers() -> list[Component]:
    return list(SAMPLERS)


@hookimpl
def mt_callbacks() -> list[Component]:
    return list(CALLBACKS)


@hookimpl
def mt_preference_losses() -> list[Component]:
    return list(LOSSES)


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    return list(OBJECTIVES)


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="dpo", summary="preferences from pairs of answers, under a low-rank pair; of 1B on a GPU of 8 GB"
        ),
        Component(name="reward", summary="a model that scores answers, from pairs; of 1B on a GPU of 8 GB"),
        Component(
            name="grpo", summary="answers of the model, compared by a reward of your own; of 1B on a GPU of 24 GB"
        ),
    ]
