"""Functions of which losses are made, exact where a naive formula overflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


HALF = -0.6931471805599453
"""log ½, where one of the two ways to write log(1 - e^x) becomes the more exact one."""


def log_sigmoid(x: Tensor) -> Tensor:
    """Return log σ(x); x itself where σ(x) underflows."""
    from torch.nn.functional import logsigmoid  # loads torch when a loss is computed, not when plugins are listed

    return logsigmoid(x)


def log_loss(x: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return -(1-ε) log σ(x) - ε log σ(-x): the cross entropy of a label that is wrong with probability ε."""
    right = -log_sigmoid(x)
    return right if label_smoothing == 0 else (1 - label_smoothing) * right - label_smoothing * log_sigmoid(-x)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - e^x) of x ≤ 0 (M. Mächler, "Accurately computing log(1 - exp(-|a|))", 2012).

    What is over -ε of its dtype counts as that: a certain answer (x = 0) has a finite value and gradient then, of both branches, since
    the gradient of a choice between them is NaN where either is infinite.
    """
    from torch import finfo

    x = x.clamp(max=-finfo(x.dtype).eps)
    return (-x.exp()).log1p().where(x < HALF, (-x.expm1()).log())
