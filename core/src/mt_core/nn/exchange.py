"""Expert ranks as a layer of experts sees them: rows go to the ranks that hold their experts, and come back.

Shapes: R rows (a token counts once for each expert that it chose), C rows that are computed here, D and W widths, X experts of the
layer, E of them on this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor


class ExpertExchange(Protocol):
    """The ranks among which the experts of a layer are divided, in order: the first has experts 0 to E - 1."""

    def __call__(self, rows_RD: Tensor, counts_X: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(R, D) sorted by expert, (X,) how many each expert gets -> (R, W), in the order of ``rows_RD``.

        ``compute`` is this rank's experts: (C, D) rows of all ranks, sorted by expert, and (E,) how many each gets -> (C, W). C may
        be 0: it computes all the same, and gives each of its parameters a gradient. All ranks make the same calls in the same
        order, in a recomputation too.
        """
        ...


@runtime_checkable
class DividesExperts(Protocol):
    """A module whose parameters of its own have a row for each expert, which ranks may divide (``--parallel.expert``).

    Both are set before the first parameter. Where a parameter is divided, its ``part`` is (which, of how many) equal runs of rows of
    the whole (``mt_core.whole_shape``), and ``exchange`` is there before the first forward.
    """

    n_experts: int
    exchange: ExpertExchange | None
