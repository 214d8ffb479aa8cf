"""Options of every objective that learns from answers of the model itself. Torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from ..scores import ScoreOptions


class AnswerOptions(ScoreOptions):
    """How many answers are written, how they are drawn, and in how many steps they are learned from."""

    prompts: int = Field(8, ge=1, le=100_000, description="prompts of an iteration")
    group: int = Field(8, ge=1, le=10_000, description="answers to each prompt, which are compared with each other")
    updates: int = Field(
        1, ge=1, le=10_000, description="optimizer steps in which the answers of an iteration are learned from"
    )
    passes: int = Field(1, ge=1, le=10_000, description="passes over the answers of an iteration")
    max_new_tokens: int = Field(64, ge=1, le=10_000_000, description="longest answer (tokens)")
    temperature: float = Field(
        1.0, ge=0.01, le=100, description="temperature of the answers; a loss of ratios has the same"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="answers are drawn from the likeliest tokens of this mass"
    )
    top_k: int | None = Field(None, ge=1, le=10_000_000, description="answers are drawn from so many likeliest tokens")
    tools: Path | None = Field(
        None,
        description="Python file whose functions the model may call; it is run with the rights of this command",
    )
    tool_rounds: int = Field(4, ge=1, le=1000, description="turns of an answer that may call tools")
    tool_timeout: float = Field(60.0, gt=0, description="longest that a call of a tool may take (seconds)")
    truncated: Literal["score", "mask"] = Field(
        "score", description="answers without an end are learned from as all are, or only compared with"
    )
    replay: Path | None = Field(
        None, description="folder of a run whose answers are learned from again, instead of writing new ones"
    )

    @model_validator(mode="after")
    def _uses_tools(self) -> Self:
        given = [
            name
            for name in ("tool_rounds", "tool_timeout")
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.tools is None and given:
            raise ValueError(f"{given[0]} does nothing without tools; name a file of tools, or leave it out")
        return self
