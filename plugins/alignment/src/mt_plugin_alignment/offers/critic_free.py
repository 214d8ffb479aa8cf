"""Objectives that learn from rewards without a critic: GRPO, and its kin by the names of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mt_core import ANY, ObjectiveComponent

from ..objectives import presets
from ..objectives.grpo_config import GrpoConfig
from .callbacks import ONLINE_DEFAULTS, online_limits
from .rewards import require_rewards

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from ..objectives.grpo import GrpoObjective


def _build(
    name: str,
    config: GrpoConfig,
    *,
    tokenizer: Tokenizer,
    template: Template,
    rewards: Mapping[str, Any],
    sampler: Any = None,
) -> GrpoObjective:
    from ..objectives.grpo import GrpoObjective

    require_rewards(rewards, f"{name} learns from rewards")
    return GrpoObjective(tokenizer, template, config, rewards, sampler)


def _offer(name: str, config: type[GrpoConfig], paper: str, summary: str) -> ObjectiveComponent:
    return ObjectiveComponent(
        name=name,
        config=config,
        build=partial(_build, name),
        uses=("reward", "sampler"),
        run_defaults=ONLINE_DEFAULTS,
        limits=online_limits,
        summary=summary,
        source=f"https://arxiv.org/abs/{paper}",
        layouts=ANY,
    )


CRITIC_FREE: tuple[ObjectiveComponent, ...] = (
    _offer(
        "grpo",
        GrpoConfig,
        "2402.03300",
        "GRPO: several answers of the model to each prompt, compared by rewards; has the options of all its variants",
    ),
    _offer("dr-grpo", presets.DrGrpoConfig, "2503.20783", "GRPO without division by standard deviation or length"),
    _offer(
        "dapo",
        presets.DapoConfig,
        "2503.14476",
        "GRPO with a higher upper clip bound; answers a prompt again if its rewards are all equal",
    ),
    _offer(
        "rloo",
        presets.RlooConfig,
        "2402.14740",
        "each whole answer against the mean of the others, with KL in the reward",
    ),
    _offer(
        "reinforce-plus-plus",
        presets.ReinforcePlusPlusConfig,
        "2501.03262",
        "one answer to each prompt, normalised over all tokens of the iteration, with KL in the reward of each token",
    ),
    _offer("gspo", presets.GspoConfig, "2507.18071", "GRPO with one ratio for each answer, for several updates"),
    _offer(
        "cispo", presets.CispoConfig, "2506.13585", "GRPO in which clipped tokens keep a gradient, for several updates"
    ),
    _offer(
        "sapo",
        presets.SapoConfig,
        "2511.20347",
        "GRPO with a soft gate on each ratio instead of bounds, for several updates",
    ),
    _offer(
        "remax", presets.RemaxConfig, "2310.10505", "one answer to each prompt, against the reward of the greedy answer"
    ),
    _offer("gdpo", presets.GdpoConfig, "2601.05242", "GRPO that compares each of several rewards by itself"),
)
