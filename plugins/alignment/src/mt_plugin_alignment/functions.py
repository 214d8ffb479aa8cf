"""Functions of which losses are made, exact where a naive formula overflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def log_sigmoid(x: Tensor) -> Tensor:
    """Return log σ(x); -x itself where σ(x) underflows."""
    from torch.nn.functional import logsigmoid  # loads torch when a loss is computed, not when plugins are listed

    return logsigmoid(x)


def log_loss(x: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return -(1-ε) log σ(x) - ε log σ(-x): the cross entropy of a label that is wrong with probability ε."""
    right = -log_sigmoid(x)
    return right if label_smoothing == 0 else (1 - label_smoothing) * right - label_smoothing * log_sigmoid(-x)
