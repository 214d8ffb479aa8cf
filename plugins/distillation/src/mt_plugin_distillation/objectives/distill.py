"""Distillation on rows (https://arxiv.org/abs/1503.02531): each trained token is learned from its label and from the teacher.

Shapes: B rows, T tokens, D model width, n trained tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mt_core import DataError, Message, Rejected, Row, Sample
from mt_core.nn import LossSums, TokenObjective

from ..divergences import divergence_of
from ..loss import DistillationRule, TeacherTokens, distillation_sums
from ..teacher import Teacher

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mt_core import Tokenizer
    from mt_core.nn import Batch

    from ..options import DistillConfig, DivergenceOptions, TeacherOptions

_MEDIA = (
    "the row has media, and a teacher reads text alone. Leave such rows out (--data.on-bad-row skip), or learn from texts that the"
    " teacher wrote about them (--objective sft)."
)


class TeacherObjective(TokenObjective):
    """Base: the loss of trained tokens beside a teacher. Subclasses say how a row is encoded."""

    def __init__(
        self, tokenizer: Tokenizer, teacher: TeacherOptions, options: DivergenceOptions, weight: float
    ) -> None:
        super().__init__(pad_id=tokenizer.pad_id or 0)
        self.teacher = Teacher(teacher, tokenizer)
        self.rule = DistillationRule(
            divergence_of(options), weight, options.softmax_temperature, options.squared_temperature
        )

    def loss(self, hidden: Tensor, head: nn.Module, batch: Batch) -> LossSums:
        """Sum of the losses of the trained tokens, (B, T, D) -> scalar, with both terms as figures. In evaluation it is the
        cross-entropy, as that of ``sft``."""
        hidden_nD, teacher = self.compared(hidden, batch)
        rule = self.rule if head.training else replace(self.rule, weight=0.0)
        sums = distillation_sums(head, hidden_nD, teacher, rule)
        count = torch.as_tensor(float(len(hidden_nD)), device=hidden.device)
        if teacher.weights_n is not None:
            count = teacher.weights_n.sum()
        figures = {"cross_entropy": (sums.cross_entropy, count), "divergence": (sums.divergence, count)}
        return LossSums(sums.loss, count, figures)

    def compared(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, TeacherTokens]:
        """(n, D) of the student, and what it is compared with."""
        hidden_nD, labels_n = batch.select_trained(hidden)
        weights_n = None if batch.weights is None else batch.weights.reshape(-1)[batch.index_n()]
        teacher_nE = self.teacher.read(batch)
        return hidden_nD, TeacherTokens(self.teacher.head, teacher_nE, labels_n, weights_n)


class DistillObjective(TeacherObjective):
    """Rows as another objective reads them (``sft``, ``pretrain``)."""

    def __init__(self, tokenizer: Tokenizer, rows: TokenObjective, config: DistillConfig) -> None:
        super().__init__(tokenizer, config, config, config.weight)
        self._rows = rows

    def encode(self, row: Row) -> Sample | Rejected:
        """The sample that the other objective makes of a row. Raises ``DataError`` as that does, and for media."""
        return _without_media(self._rows.encode(row))

    def encode_many(self, rows: Sequence[Row]) -> list[Sample | Rejected]:
        """Return what ``encode`` gives for each row, many at once where the other objective can."""
        many = getattr(self._rows, "encode_many", None)
        return [self.encode(row) for row in rows] if many is None else list(map(_without_media, many(rows)))


def refuse_media(row_id: str, turns: Sequence[Message]) -> None:
    """Raise ``DataError`` for turns with media."""
    if any(turn.get("media") for turn in turns):
        raise DataError(f"{row_id}: {_MEDIA}")


def _without_media(found: Sample | Rejected) -> Sample | Rejected:
    if isinstance(found, Sample) and found.media:
        raise DataError(f"{found.row_id}: {_MEDIA}")
    return found
