"""Options of evaluations that let the model write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from mt_core import PartChoice
from mt_core.evaluation import EvaluationConfig

from .sampling import SamplingOptions

Choice = dict[str, Any]
"""Name and options of a component: ``{name: jsonl, path: rows.jsonl}``."""


def _split_list(value: Any) -> Any:
    """``A,B`` stands for two values."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class AnswersConfig(SamplingOptions):
    """Rows whose answers are compared with references."""

    rows: Choice = Field(description="dataset of the rows, its name and options: {name: jsonl, path: F}")
    metrics: tuple[str | Choice, ...] = Field(
        min_length=1, description="metrics, by name or as {name: NAME, OPTION: VALUE} (A,B)"
    )
    references: str = Field(
        "references",
        min_length=1,
        description="field with the right texts, one or a list; without it the row's own answer is right",
    )
    max_new_tokens: int = Field(256, ge=1, description="longest answer (tokens)")
    stop: tuple[str, ...] = Field((), description="texts before which an answer ends")
    seed: int = Field(0, ge=0, description="seed of sampling")
    limit: int | None = Field(None, ge=1, description="rows that are asked, the first ones; none: all")

    _metrics_listed = field_validator("metrics", mode="before")(_split_list)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_text(cls, value: Any) -> Any:
        """A text alone stands for one, commas and all."""
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = self.metric_names
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"metrics name {twice[0]} twice, and its figures would have one name; keep one of them")
        return self

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics, in order."""
        return [str(each.get("name", "")) if isinstance(each, dict) else each for each in self.metrics]


def answers_parts(config: AnswersConfig) -> Mapping[str, PartChoice]:
    """Return the dataset and the metrics that ``answers`` is made of."""
    metrics = [each if isinstance(each, dict) else {"name": each} for each in config.metrics]
    return {
        "rows": PartChoice.of(config.rows, kind="dataset"),
        **{f"metrics.{each.get('name', '')}": PartChoice.of(each, kind="metric") for each in metrics},
    }


class Gsm8kConfig(EvaluationConfig):
    """Rows of GSM8K and its shots."""

    rows: Choice = Field(description="dataset with the questions (question, answer), its name and options")
    examples: Choice | None = Field(None, description="dataset that shots are drawn from; none: the other questions")
    shots: int = Field(5, ge=0, description="examples in front of each question")
    chat: bool = Field(False, description="write them as a conversation, by the run's template")
    max_new_tokens: int = Field(256, ge=1, description="longest answer (tokens)")
    seed: int = Field(1234, ge=0, description="seed of the shots; lm-evaluation-harness draws the same ones with 1234")
    limit: int | None = Field(None, ge=1, description="questions that are asked, the first ones; none: all")


def gsm8k_parts(config: Gsm8kConfig) -> Mapping[str, PartChoice]:
    """Return the datasets that ``gsm8k`` is made of."""
    rows = {"rows": PartChoice.of(config.rows, kind="dataset")}
    return rows if config.examples is None else {**rows, "examples": PartChoice.of(config.examples, kind="dataset")}


class PassAtKConfig(EvaluationConfig):
    """Problems whose answers are programs, and how these are run."""

    rows: Choice = Field(description="dataset with problems as HumanEval or MBPP have them, its name and options")
    k: tuple[int, ...] = Field(
        (1,), min_length=1, description="answers of which one must be right, one figure for each (1,10)"
    )
    samples: int = Field(1, ge=1, le=10_000, description="answers to each problem, at least the largest k")
    temperature: float = Field(0.8, ge=0, le=100, description="sampling temperature; 0 takes the most likely token")
    top_p: float = Field(0.95, gt=0, le=1, description="sample from the most likely tokens with this total probability")
    max_new_tokens: int = Field(512, ge=1, description="longest answer (tokens)")
    seed: int = Field(0, ge=0, description="seed of sampling")
    limit: int | None = Field(None, ge=1, description="problems that are asked, the first ones; none: all")
    cpu_seconds: int = Field(3, ge=1, le=3600, description="processor time of one program (seconds)")
    memory_mib: int = Field(1024, ge=64, description="memory of one program (MiB)")
    run_untrusted_code: bool = Field(
        False, description="run what the model wrote, in a process that can do little; must be true"
    )

    @field_validator("k", mode="before")
    @classmethod
    def _numbers_listed(cls, value: Any) -> Any:
        """``1,10`` stands for two numbers, 1 for one."""
        if isinstance(value, str):
            return tuple(int(part) if part.strip().isdigit() else part for part in value.split(","))
        return (value,) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if not self.run_untrusted_code:
            raise ValueError(
                "pass-at-k runs programs that the model wrote, in a process without network that can write no file; allow it with"
                " run_untrusted_code: true (--evaluations.pass-at-k.run-untrusted-code true)"
            )
        if min(self.k) < 1 or len(set(self.k)) < len(self.k):
            raise ValueError(f"k {', '.join(map(str, self.k))} must be different numbers of at least 1")
        if max(self.k) > self.samples:
            raise ValueError(
                f"pass@{max(self.k)} needs {max(self.k)} answers to each problem, and samples is {self.samples}; raise it"
            )
        return self


def pass_at_k_parts(config: PassAtKConfig) -> Mapping[str, PartChoice]:
    """Return the dataset that ``pass-at-k`` is made of."""
    return {"rows": PartChoice.of(config.rows, kind="dataset")}
