"""Entry point of the distillation plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mt_core import ANY, ObjectiveComponent, PartChoice, hookimpl

from .options import DistillConfig

if TYPE_CHECKING:
    from mt_core import Template, Tokenizer

    from .objectives.distill import DistillObjective


@hookimpl
def mt_objectives() -> list[ObjectiveComponent]:
    return [
        ObjectiveComponent(
            name="distill",
            config=DistillConfig,
            build=_distill,
            parts=partial(_rows_of, "sft"),
            summary="the rows of sft, with a teacher's distribution of each trained token beside its label",
            source="https://arxiv.org/abs/1503.02531",
            layouts=ANY,
        ),
        ObjectiveComponent(
            name="distill-pretrain",
            config=DistillConfig,
            build=_distill,
            parts=partial(_rows_of, "pretrain"),
            batching="packing",
            truncation="split",
            summary="the texts of pretrain, with a teacher's distribution of each token beside the next one",
            source="https://arxiv.org/abs/1503.02531",
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
