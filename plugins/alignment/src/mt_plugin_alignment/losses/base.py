"""Base class of preference losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ..pairs import Pairs


class PreferenceLoss(Protocol):
    """The loss of each pair; nothing is averaged, and a pair's loss follows from this pair alone.

    An objective divides the sum by the pairs of the whole step, and measures the reference only for a loss that ``needs_reference``.
    ``known_start`` is the loss at r = 0, where the model still is its reference: the first step has to show it. ``beta`` is the factor
    of r with which rewards are reported. ``nll`` is the weight of the negative log-likelihood of chosen answers that belongs to the
    method; the objective adds it, over a denominator of its own.
    """

    beta: float
    needs_reference: bool = True
    known_start: float | None = None
    nll: float = 0.0

    def __call__(self, pairs: Pairs) -> Tensor:
        """Return the loss of each pair, shape (pairs,)."""
        ...
