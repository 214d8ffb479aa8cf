"""The module that DeepSpeed sees: the model, and the head with its loss as the last layer.

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from mt_core.model_protocols import Objective
from mt_core.nn import Batch, KVCache, TrainModel
from mt_train.engine.source_losses import SourceLosses

MODEL_PREFIX = "model."


Reader = Callable[[Tensor, nn.Module, Batch], None]
"""Gets hidden states (B, T, D), the head and the batch, where the objective would make a loss of them."""


class LossHead(nn.Module):
    """The head and what the objective does with it. A partitioned head weight is gathered in this forward.

    With ``own_head`` the objective calls its modules alone. Parameters of the language head that are trained all the same, since other
    stages of a pipeline share them, get a gradient of zero here (``tied``).
    """

    def __init__(self, head: nn.Module, objective: Objective, *, own_head: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.head = head
        self.objective = objective
        self.own_head, self.tied = own_head, tied
        self.metric_names: tuple[str, ...] = ()
        self.term_names: tuple[str, ...] = ()
        self.by_source: SourceLosses | None = None
        self.reader: Reader | None = None
        """Takes the objective's place for a while; see ``Engine.read``."""
        self.gather_unused: Callable[[], AbstractContextManager[object]] = nullcontext
        """Inside, parameters of the language head that the objective does not use are whole, for a ``reader``."""

    def forward(self, hidden_BTD: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """(loss sum, token count, then sum and count of each further term and of each metric): plain tensors, which ZeRO's hooks can
        follow."""
        if self.reader is not None:
            with self.gather_unused():
                self.reader(hidden_BTD, self.head, batch)
            nothing = hidden_BTD.new_zeros((), dtype=torch.float32)
            return nothing, nothing
        sums = self.objective.loss(hidden_BTD, self.head, batch)
        self.term_names, self.metric_names = tuple(sums.terms), tuple(sums.metrics)
        pairs = [value for pair in (*sums.terms.values(), *sums.metrics.values()) for value in pair]
        if self.by_source is not None:
            self.metric_names += self.by_source.names
            pairs += self.by_source.pairs(self.objective, hidden_BTD, self.head, batch)
        loss_sum = sums.loss_sum
        if self.tied and self.own_head and torch.is_grad_enabled():
            loss_sum = loss_sum + sum(
                each.sum() * 0 for each in self.head.parameters(recurse=False) if each.requires_grad
            )
        return loss_sum, sums.token_count, *pairs


class TrainStep(nn.Module):
    """Batch to loss sums. Parameters of the model come first, under ``model.``."""

    def __init__(self, model: TrainModel, objective: Objective, *, own_head: bool = False) -> None:
        super().__init__()
        self.model = model
        self.loss_head = LossHead(model.head, objective, own_head=own_head)

    def forward(self, batch: Batch, *cache: KVCache) -> tuple[Tensor, ...]:
        """See ``LossHead``. A ``cache`` is for a reader that generates."""
        over_row = getattr(self.model.attention, "over_row", None)
        shared = batch if over_row is None else replace(batch, over_row=over_row)
        return self.loss_head(self.model(batch, *cache), shared)  # type: ignore[no-any-return]


class Trained(Protocol):
    """Module that an engine trains: ``TrainStep``, or the layers of a pipeline stage."""

    model: TrainModel
    loss_head: LossHead

    def parameters(self) -> Iterator[nn.Parameter]:
        """All that is on this rank."""
        ...


def weighted_loss(outputs: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    """The scalar whose backward is run: the sums of a ``LossHead``, the loss and its further terms, each times its scale.

    A loss that is infinite may still have finite gradients; here they become NaN, so that the step is refused.
    """
    weighted = [
        each * torch.where(torch.isfinite(each.detach()), scale, math.nan)
        for each, scale in zip(outputs[: 2 * len(scales) : 2], scales, strict=True)
    ]
    total = weighted[0]
    for each in weighted[1:]:
        total = total + each
    return total


def canonical_name(name: str) -> str:
    """The parameter's name in the model's own ``state_dict``."""
    return name.removeprefix(MODEL_PREFIX)
