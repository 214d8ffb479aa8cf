"""Options of objectives that keep some of the model's own answers. Torch is imported when one is built."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from .answer_options import AnswerOptions
from .config import DpoConfig


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
