"""Options of the objectives. Torch is not imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from mt_core import MtConfig

DivergenceName = Literal["forward-kl", "reverse-kl", "jsd", "skew-kl", "skew-reverse-kl"]

_OF = {"beta": ("jsd",), "alpha": ("skew-kl", "skew-reverse-kl")}
"""Divergences that an option belongs to."""


class TeacherOptions(MtConfig):
    """Where the teacher is, and how it is read."""

    teacher_path: Path = Field(
        description="folder of the teacher: whole weights of any family with their tokenizer, or a run"
    )
    teacher_family: str | None = Field(
        None, description="model family of a folder of weights; default: the one that config.json names"
    )
    teacher_checkpoint: Literal["last", "best"] | Annotated[int, Strict(), Field(ge=0, le=2**53)] = Field(
        "last", description="checkpoint of a run that is the teacher: last, best or a step"
    )
    teacher_dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="precision of its weights; auto is the stored one on a GPU, and fp32 on a CPU"
    )


class DivergenceOptions(MtConfig):
    """How far apart teacher and student are."""

    divergence: DivergenceName = Field(
        "forward-kl", description="distance of the student's distribution of a token from the teacher's"
    )
    beta: float = Field(
        0.5, ge=0, le=1, description="share of the teacher in the mixture of jsd; 0 is forward-kl, 1 is reverse-kl"
    )
    alpha: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="share of the first distribution that skew-kl and skew-reverse-kl mix into the other",
    )
    softmax_temperature: float = Field(
        1.0, ge=0.01, le=100, description="logits of both are divided by it before they are compared"
    )
    squared_temperature: bool = Field(
        True,
        description="multiply the divergence by the square of softmax_temperature, which keeps its gradient's size",
    )

    @model_validator(mode="after")
    def _no_idle_option(self) -> Self:
        for option, names in _OF.items():
            is_given = (
                getattr(self, option) != type(self).model_fields[option].default
            )  # run.yaml has the defaults, too
            if is_given and self.divergence not in names:
                raise ValueError(
                    f"{option} is an option of {' and '.join(names)}, and divergence is {self.divergence}; leave it out"
                )
        return self


class DistillConfig(DivergenceOptions, TeacherOptions):
    """Options of objectives on rows."""

    weight: float = Field(
        0.5,
        gt=0,
        le=1,
        description="w of the loss (1 - w) · cross-entropy + w · divergence; 1 learns from the teacher alone",
    )


class GkdConfig(DivergenceOptions, TeacherOptions):
    """Options of ``gkd``."""

    divergence: DivergenceName = Field(
        "jsd", description="distance of the student's distribution of a token from the teacher's"
    )
    on_policy: float = Field(
        1.0,
        ge=0,
        le=1,
        description="λ: share of the prompts that the student answers; the others have the row's answer",
    )
    prompts: int = Field(8, ge=1, le=100_000, description="prompts of an iteration")
    updates: int = Field(
        1, ge=1, le=10_000, description="optimizer steps in which the answers of an iteration are learned from"
    )
    passes: int = Field(1, ge=1, le=10_000, description="passes over the answers of an iteration")
    max_new_tokens: int = Field(
        64, ge=1, le=10_000_000, description="longest answer; a longer one of a row is cut (tokens)"
    )
    temperature: float = Field(
        1.0, ge=0.01, le=100, description="temperature with which the student's answers are drawn"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="answers are drawn from the likeliest tokens of this mass"
    )
    top_k: int | None = Field(None, ge=1, le=10_000_000, description="answers are drawn from so many likeliest tokens")
