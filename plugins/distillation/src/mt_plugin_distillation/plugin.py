"""Entry point of the distillation plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mt_core import ANY, Component, ObjectiveComponent, PartChoice, hookimpl

from .options import DistillConfig, GkdConfig
from .teacher_check import TeacherCheck

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from .objectives.distill import DistillObjective
    from .objectives.gkd import GkdObjective

CHECKED: Mapping[str, Any] = {"callbacks.teacher_check": {}}
"""``run_defaults`` of a run with a teacher: it goes on with the same one, unless it says ``callbacks: none``."""


@hookimpl
def mt_callbacks() -> list[Component]:
    return [
        Component(
            name="teacher-check",
            build=TeacherCheck,
            summary="refuses to resume a run whose teacher has changed; objectives with a teacher bring it",
            layouts=ANY,
        )
    ]


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    return [
        ObjectiveComponent(
            name="distill",
            config=DistillConfig,
            build=_distill,
            parts=partial(_rows_of, "sft"),
            run_defaults=CHECKED,
            summary="the rows of sft, with a teacher's distribution of each trained token beside its label",
            source="https://arxiv.org/abs/1503.02531",
            layouts=ANY,
        ),
        ObjectiveComponent(
            name="distill-pretrain",
            config=DistillConfig,
            build=_distill,
            parts=partial(_rows_of, "pretrain"),
            run_defaults=CHECKED,
            batching="packing",
            truncation="split",
            summary="the texts of pretrain, with a teacher's distribution of each token beside the next one",
            source="https://arxiv.org/abs/1503.02531",
            layouts=ANY,
        ),
        ObjectiveComponent(
            name="gkd",
            config=GkdConfig,
            build=_gkd,
            run_defaults={**CHECKED, "checkpoint.best": "eval_answer_divergence:min"},
            limits=_gkd_limits,
            summary="GKD: answers of the student, and perhaps of the rows, learned from a teacher's distribution of each token",
            source="https://arxiv.org/abs/2306.13649",
            layouts=ANY,
        ),
    ]


def _rows_of(objective: str, config: DistillConfig) -> Mapping[str, PartChoice]:
    """Return the objective that reads the rows, with its defaults."""
    return {"rows": PartChoice(name=objective)}


def _distill(
    config: DistillConfig, *, tokenizer: Tokenizer, template: Template, parts: Sequence[Any]
) -> DistillObjective:
    from .objectives.distill import DistillObjective

    (rows,) = parts
    return DistillObjective(tokenizer, rows, config)


def _gkd(config: GkdConfig, *, tokenizer: Tokenizer, template: Template) -> GkdObjective:
    from .objectives.gkd import GkdObjective

    return GkdObjective(tokenizer, template, config)


def _gkd_limits(config: Any) -> dict[str, str]:
    return {"eval-loss": "its held-out rows are prompts, whose answers have a divergence and no loss"}
