"""Options of PPO."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from .answer_options import AnswerOptions


class PpoConfig(AnswerOptions):
    """Options of collecting answers, judging their tokens by a critic, and learning from them."""

    prompts: int = Field(32, ge=1, le=100_000, description="prompts of an iteration")
    group: int = Field(1, ge=1, le=10_000, description="answers to each prompt")
    passes: int = Field(4, ge=1, le=10_000, description="passes over the answers of an iteration")
    kl: float = Field(
        0.05,
        ge=0,
        le=1000,
        description="β: what leaving the model of step 0 costs, off the reward of each token (per nat); at 0 nobody measures that model",
    )
    kl_target: float | None = Field(
        None, gt=0, le=1e6, description="divergence of an answer (nats) that β is adapted to; none: β stays. 6 is usual"
    )
    kl_horizon: float = Field(10_000, gt=0, le=1e12, description="how slowly β is adapted (answers)")
    gamma: float = Field(1.0, ge=0, le=1, description="γ: what a reward counts one token earlier")
    lam: float = Field(0.95, ge=0, le=1, description="λ of advantages: 1 trusts what was scored alone, 0 the critic")
    whiten: bool = Field(True, description="advantages get mean 0 and deviation 1 over all tokens of the iteration")
    clip_low: float = Field(0.2, gt=0, le=1, description="ε: how much less likely a token may become at no cost")
    clip_high: float = Field(0.2, gt=0, le=1000, description="ε: how much more likely a token may become at no cost")
    dual_clip: float | None = Field(
        None, gt=1, le=1000, description="c: a worse answer's token costs at most c times its advantage; 3 is usual"
    )
    clip_value: float | None = Field(
        0.2, gt=0, le=1e6, description="how far a value may move from what it was at no cost; none: as far as it wants"
    )
    value_weight: float = Field(0.1, ge=0, le=1000, description="weight of the critic's loss beside the policy's")
    entropy_weight: float = Field(
        0.0, ge=0, le=1000, description="weight of a bonus for choices that are undecided (per nat)"
    )
    missing_eos_penalty: float = Field(
        0.0, ge=0, le=1000, description="taken off the reward of an answer without an end"
    )

    @model_validator(mode="after")
    def _adaptable(self) -> Self:
        if self.kl_target is not None and not self.kl:
            raise ValueError(
                "kl_target adapts kl, which is 0 and stays so; give the β to begin with, as kl=0.05, or leave kl_target out"
            )
        return self
