from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class Plain:
    """A loss without a fault: DPO."""

    needs_reference: Any = True
    known_start: float | None = math.log(2)
    beta: Any = 0.1
    nll: Any = 0.0

    def __init__(self, config: Any) -> None:
        self.asked = 0

    def __call__(self, pairs: Any) -> Tensor:
        return -logsigmoid(self.beta * pairs.margin)


class Reticent(Plain):
    needs_reference = "yes"


class Secretive(Plain):
    beta = None


class Greedy(Plain):
    nll = -1.0


class Averaged(Plain):
    def __call__(self, pairs: Any) -> Tensor:
        return super().__call__(pairs).mean()


class Naive(Plain):
    """Takes the logarithm of what underflows."""

    def __call__(self, pairs: Any) -> Tensor:
        return -torch.sigmoid(self.beta * pairs.margin).log()


class Branching(Plain):
    """Has a finite loss, and the gradient of the branch that it does not take."""

    def __call__(self, pairs: Any) -> Tensor:
        x = self.beta * pairs.margin
        return torch.where(x > -30, torch.exp(-x).log1p(), -x)


class Misstated(Plain):
    known_start = 1.0


class Turned(Plain):
    def __call__(self, pairs: Any) -> Tensor:
        return -logsigmoid(-self.beta * pairs.margin)


class Centred(Plain):
    def __call__(self, pairs: Any) -> Tensor:
        return -logsigmoid(self.beta * (pairs.margin - pairs.margin.mean()))


class Lengthening(Plain):
    """Corrects lengths in place."""

    def __call__(self, pairs: Any) -> Tensor:
        pairs.chosen_lengths.add_(1.0)
        return super().__call__(pairs)


class Moving(Plain):
    def __call__(self, pairs: Any) -> Tensor:
        self.asked += 1
        return super().__call__(pairs) / self.asked


class Aloof(Plain):
    """Asks for a reference, and does not look at it."""

    known_start = None

    def __call__(self, pairs: Any) -> Tensor:
        return -logsigmoid(self.beta * (pairs.chosen - pairs.rejected))
