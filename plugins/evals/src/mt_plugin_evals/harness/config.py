"""Options of the evaluation ``harness``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from mt_core.evaluation import EvaluationConfig

Begin = Literal["run", "always", "none"]


class HarnessConfig(EvaluationConfig):
    """Tasks of lm-evaluation-harness, and how they are asked."""

    tasks: tuple[str, ...] = Field(min_length=1, description="tasks, groups or tags of lm-evaluation-harness (A,B)")
    include: str | None = Field(
        None, description="folder with task files of your own; these are read without a network"
    )
    shots: int | None = Field(None, ge=0, description="examples before each question; none: as many as the task says")
    limit: int | None = Field(None, ge=1, description="questions of each task, the first ones; none: all")
    bos: Begin = Field(
        "run",
        description="token in front of a text. run: as the run's rows have it; always: the begin token; none: no token",
    )
    chat: bool = Field(False, description="write questions as conversations, by the run's template")
    multiturn: bool = Field(True, description="in conversations each shot is a turn; false: all in one question")
    seed: int = Field(1234, ge=0, description="seed of the shots that a task draws, and of what its files draw")
    bootstrap: int = Field(
        0, ge=0, description="resamplings for standard errors of figures that are no means; 0: none of those"
    )
    run_untrusted_code: bool = Field(False, description="allow tasks that run code which the model wrote")

    @field_validator("tasks", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        """``A,B`` stands for two tasks."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
