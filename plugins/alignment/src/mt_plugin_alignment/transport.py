"""Alignment by optimal transport (AOT, https://arxiv.org/abs/2406.05882): distributions of log-ratios, not single pairs.

Shapes: P pairs, S pairs of the whole step. What is compared has the same place in two orders, which are those of a step: a part of it
gives another loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .functions import log_loss
from .pairs import Pairs, known

if TYPE_CHECKING:
    from torch import Tensor


def paired_values(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return differences of chosen and rejected log-probability of the model and of the reference, (P,) each. Raises ``UsageError``."""
    reference = known(pairs.reference_chosen, "reference_chosen") - known(
        pairs.reference_rejected, "reference_rejected"
    )
    return pairs.chosen - pairs.rejected, reference


def unpaired_values(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return log-ratios of chosen and of rejected answers, (P,) each; they need not answer the same prompts. Raises ``UsageError``."""
    return pairs.chosen_reward, pairs.rejected_reward


def counterparts(first_S: Tensor, second_S: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each of the first what has its place in the order of the second, and the other way round, without gradient."""
    first, second = first_S.detach().sort(), second_S.detach().sort()
    of_first, of_second = first_S.new_empty(len(first_S)), second_S.new_empty(len(second_S))
    of_first[first.indices], of_second[second.indices] = second.values, first.values
    return of_first.detach(), of_second.detach()


def transport_loss(
    values: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """Return -log σ(β(first - its counterpart)) and -log σ(β(counterpart of the second - second)), half of each, (P,).

    Added up over the step both are the sum over places of -log σ(β(first - second)). Since counterparts are held, each has the
    gradient of its own side, and together they have that of the sum.
    """
    (first_P, second_P), (of_first_P, of_second_P) = values, others
    both = log_loss(beta * (first_P - of_first_P), label_smoothing) + log_loss(
        beta * (of_second_P - second_P), label_smoothing
    )
    return both - both.detach() / 2
