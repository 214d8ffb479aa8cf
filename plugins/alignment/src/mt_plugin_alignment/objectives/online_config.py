"""Options of objectives that keep some of the model's own answers. Torch is imported when one is built."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from ..scores import ScoreOptions
from .config import DpoConfig


class AnswerOptions(ScoreOptions):
    """How many answers are written, and in how many steps they are learned from."""

    prompts: int = Field(8, ge=1, le=100_000, description="prompts of an iteration")
    group: int = Field(8, ge=1, le=10_000, description="answers to each prompt, which are compared with each other")
    updates: int = Field(
        1, ge=1, le=10_000, description="optimizer steps in which the answers of an iteration are learned from"
    )
    passes: int = Field(1, ge=1, le=10_000, description="how often they are learned from")
    max_new_tokens: int = Field(64, ge=1, le=10_000_000, description="longest answer (tokens)")
    temperature: float = Field(1.0, ge=0.01, le=100, description="temperature of the answers; the loss has none")
    top_p: float | None = Field(
        None, gt=0, le=1, description="answers are drawn from the likeliest tokens of this mass"
    )
    top_k: int | None = Field(None, ge=1, le=10_000_000, description="answers are drawn from so many likeliest tokens")
    truncated: Literal["score", "mask"] = Field(
        "score", description="answers without an end are as good as their scores, or never learned from"
    )
    replay: Path | None = Field(
        None, description="folder of a run whose answers are learned from again, instead of writing new ones"
    )


class RejectionConfig(AnswerOptions):
    """Which answers are kept."""

    keep: int = Field(1, ge=1, le=10_000, description="answers of each group that are kept at most, the best ones")
    least: float | None = Field(None, description="reward that an answer needs to be kept; none: any")

    @model_validator(mode="after")
    def _keeps_what_is_written(self) -> Self:
        if self.keep > self.group:
            raise ValueError(f"keep={self.keep} of group={self.group} answers to a prompt; keep {self.group} or fewer")
        return self


class OnlineDpoConfig(DpoConfig, AnswerOptions):
    """Which losses, the options of pairs, and how many answers are written."""

    group: int = Field(
        2, ge=2, le=10_000, description="answers to each prompt, the best and the worst of which are a pair"
    )
