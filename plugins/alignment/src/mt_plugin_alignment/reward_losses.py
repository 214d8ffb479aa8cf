"""Losses of reward models: scores of two answers, or of one beside what people gave it.

Shapes: P pairs, A answers. A score is what the model says at the last token of an answer, in fp32. Of pairs drawn with probability p,
Bradley-Terry ends at s_w - s_l = logit p.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .functions import log_sigmoid

if TYPE_CHECKING:
    from torch import Tensor


def bradley_terry(chosen_P: Tensor, rejected_P: Tensor, margins_P: Tensor | float = 0.0) -> Tensor:
    """Return -log σ(s_w - s_l - m) of each pair, (P,).

    https://arxiv.org/abs/2203.02155, equation 1; ``margins`` say by how much the chosen answer is better
    (https://arxiv.org/abs/2307.09288, equation 2).
    """
    return -log_sigmoid(chosen_P - rejected_P - margins_P)


def scaled_bradley_terry(chosen_P: Tensor, rejected_P: Tensor, margins_P: Tensor) -> Tensor:
    """Return -m log σ(s_w - s_l) of each pair, (P,): margins weigh the pair (https://arxiv.org/abs/2410.01257, equation 3)."""
    return -margins_P * log_sigmoid(chosen_P - rejected_P)


def centring(chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
    """Return (s_w + s_l)² of each pair, (P,), which is added with a small weight, as 0.01: Bradley-Terry leaves the mean score free.

    https://arxiv.org/abs/2312.09244, equation 2.
    """
    return (chosen_P + rejected_P).square()


def squared_error(scores_A: Tensor, targets_A: Tensor) -> Tensor:
    """Return (s - y)² of each answer, (A,), for rows with a score (https://arxiv.org/abs/2406.08673)."""
    return (scores_A - targets_A).square()
