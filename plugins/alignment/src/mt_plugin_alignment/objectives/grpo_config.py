"""Options of learning from rewards without a critic. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from ..kl import Estimator
from .answer_options import AnswerOptions


class GrpoConfig(AnswerOptions):
    """Options of collecting answers, comparing them and learning from them."""

    resample: int = Field(
        0, ge=0, le=100, description="how often a prompt is answered again while its answers all score the same (DAPO)"
    )
    baseline: Literal["group", "others", "greedy", "none"] = Field(
        "group",
        description="what a reward is compared with: the mean of its group, of the others in it (RLOO), the reward of the greedy answer"
        " (ReMax), or nothing",
    )
    scale: Literal["group", "batch", "tokens", "none"] = Field(
        "group",
        description="divided by the deviation of the group (GRPO), of all answers, or by nothing (Dr. GRPO); or whitened over all tokens"
        " (REINFORCE++)",
    )
    normalise: Literal["sum", "each"] = Field(
        "sum", description="compare weighted sums of rewards, or each reward by itself, whitened together (GDPO)"
    )
    mean: Literal["token", "answer", "constant", "prompt"] = Field(
        "token",
        description="mean over tokens (DAPO), over answers of their own means (GRPO), over all places (Dr. GRPO), or over prompts of the"
        " means of their tokens",
    )
    loss: Literal["clip", "sequence", "whole", "cispo", "soft"] = Field(
        "clip",
        description="clipped ratios of tokens (PPO), the mean one of an answer (GSPO), the product over it (RLOO), clipped weights of"
        " log-probabilities (CISPO), or ratios of tokens through a sigmoid (SAPO)",
    )
    soft_positive: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="τ of loss soft for better answers: how fast a token's weight falls as its ratio leaves 1",
    )
    soft_negative: float = Field(1.05, gt=0, le=1000, description="τ of loss soft for worse answers")
    entropy_weight: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="weight of a bonus for choices that are undecided (per nat), in the mean of the loss",
    )
    clip_low: float = Field(0.2, gt=0, le=1, description="ε: how much less likely a token may become at no cost")
    clip_high: float = Field(
        0.2, gt=0, le=1000, description="ε: how much more likely a token may become at no cost; 0.28 with DAPO"
    )
    dual_clip: float | None = Field(
        None, gt=1, le=1000, description="c: a worse answer's token costs at most c times its advantage; 3 is usual"
    )
    kl: float = Field(
        0.0, ge=0, le=1000, description="β: what leaving the model of step 0 costs; at 0 nobody measures that model"
    )
    kl_in: Literal["loss", "reward", "returns"] = Field(
        "loss",
        description="where it costs: a term of each token's loss, off an answer's reward (RLOO), or off the reward of each token, so that"
        " one pays for what follows it (REINFORCE++)",
    )
    kl_estimator: Estimator | None = Field(
        None, description="its estimate; none: k1 in rewards, k2 in the loss, where k3 ends at another policy"
    )
    missing_eos_penalty: float = Field(
        0.0, ge=0, le=1000, description="taken off the reward of an answer without an end"
    )
    importance: Literal["none", "token", "icepop"] = Field(
        "none",
        description="correct for a sampler with other numbers than the trainer: weigh tokens by the ratio of both, at most importance_high,"
        " or drop those outside the bounds",
    )
    importance_low: float = Field(0.5, ge=0, le=1, description="least ratio that icepop keeps")
    importance_high: float = Field(2.0, ge=1, le=1000, description="C: most that a ratio counts, or that icepop keeps")

    @property
    def estimator(self) -> Estimator:
        """The estimate of the KL where none is named."""
        return self.kl_estimator or ("k2" if self.kl_in == "loss" else "k1")

    @property
    def compares(self) -> bool:
        """Whether answers are compared with others to the same prompt."""
        return self.baseline in ("group", "others")

    @property
    def measures_old(self) -> bool:
        """Whether answers are measured with the weights that wrote them: with one step these are those of the step."""
        in_reward = self.kl > 0 and self.kl_in != "loss"
        return self.updates * self.passes > 1 or in_reward or self.importance != "none"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if faults := [*self._advantage_faults(), *self._loss_faults()]:
            raise ValueError("; ".join(faults))
        return self

    def _advantage_faults(self) -> Iterator[str]:
        """Tell what does not go together in how answers are compared."""
        if self.compares and self.group == 1:
            yield (
                f"baseline {self.baseline} compares the answers to a prompt, and group is 1; set group to 2 or more, or baseline greedy"
                " and scale none"
            )
        if not self.compares and self.scale in ("group", "batch"):
            yield f"scale {self.scale} divides what is compared within a group, and baseline is {self.baseline}; set scale tokens or none"
        if not self.compares and self.resample:
            yield f"resample answers prompts again whose answers are alike, and baseline {self.baseline} compares none; leave it out"
        if not self.compares and self.normalise == "each":
            yield f"normalise each compares each reward within a group, and baseline is {self.baseline}; set baseline group or others"
        if self.normalise == "each" and self.scale == "tokens":
            yield "normalise each whitens over answers, and scale tokens over tokens; set scale group, batch or none"
        if self.normalise == "each" and (self.missing_eos_penalty or (self.kl and self.kl_in == "reward")):
            yield "normalise each has no sum to take anything off; set missing_eos_penalty 0 (the reward length does it), and kl_in loss"

    def _loss_faults(self) -> Iterator[str]:
        """Tell what does not go together in the loss."""
        if self.kl_in != "loss" and self.estimator != "k1":
            yield f"kl_estimator {self.estimator} goes with kl_in loss; in the {self.kl_in} it is k1"
        if self.loss in ("cispo", "soft") and self.dual_clip:
            yield f"dual_clip bounds a clipped loss, and loss is {self.loss}; leave it out"
        unused, reason = ("soft_positive", "soft_negative"), "has bounds, and no temperatures"
        if self.loss == "soft":
            unused, reason = ("clip_low", "clip_high"), "has no bounds"
        for name in unused:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                yield f"{name} {value} does nothing where loss is {self.loss}, which {reason}; leave it out"
        if self.importance != "none" and (self.temperature != 1 or self.top_p is not None or self.top_k):
            yield (
                f"importance {self.importance} compares with log-probabilities of a sampler, which are over all tokens at temperature 1;"
                " leave temperature, top_p and top_k at their defaults"
            )
