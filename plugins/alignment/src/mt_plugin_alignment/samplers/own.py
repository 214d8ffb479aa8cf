"""Answers that the model writes in the trainer itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mt_core import MtConfig

from .base import Completion

if TYPE_CHECKING:
    from mt_core.generation import GenerationConfig
    from mt_train import Policy


class OwnConfig(MtConfig):
    """Weights that the sampler writes with."""

    weights: Literal["auto", "live", "copy"] = Field(
        "auto",
        description="those that are trained (live), a whole copy on each rank, or a copy where a rank cannot run the model alone",
    )


def own_limits(config: OwnConfig) -> dict[str, str]:
    """Return the layouts whose weights cannot write by themselves."""
    if config.weights != "live":
        return {}
    instead = "--sampler.weights copy writes with a whole copy on each rank"
    return {
        "pipeline": f"the weights that are trained write no texts where each rank has some layers ({instead})",
        "sequence": f"the weights that are trained write no texts where each rank has a part of each row ({instead})",
    }


class OwnSampler:
    """The decoder of the trainer. Its log-probabilities are those of the model itself, which are the sampler's at temperature 1."""

    full_support = True

    def __init__(self, config: OwnConfig) -> None:
        self._weights = config.weights

    def sample(self, policy: Policy, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[Completion]:
        """See ``Sampler``."""
        drawn = policy.generate(prompts, config, weights=self._weights)
        at_one = config.logprobs and config.rules.draws and config.rules.temperature == 1
        return [Completion.of(each, logprobs=(each.logprobs or None) if at_one else None) for each in drawn]


def build_copy(config: MtConfig) -> OwnSampler:
    """Build the sampler that always takes the copy."""
    return OwnSampler(OwnConfig(weights="copy"))
