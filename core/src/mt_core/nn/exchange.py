"""Expert ranks as a layer of experts sees them: rows go to the ranks that hold their experts, and come back.

Shapes: S rows sorted by expert (a token counts once for each that it chose), R rows that came for the experts of this rank, D and W
widths, X experts of the layer, E of them on this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Received(NamedTuple):
    """Rows for this rank's experts, sorted by expert; the end of each expert's rows; and the function that returns their outputs.

    There may be none: the experts compute all the same, and give each of their parameters a gradient. ``back`` is called once,
    (R, W) -> (S, W), in the order of the rows that were sent.
    """

    rows_RD: Tensor
    ends_E: Tensor
    back: Callable[[Tensor], Tensor]


class ExpertExchange(Protocol):
    """The ranks among which the experts of a layer are divided, in order: the first has experts 0 to E - 1.

    All of them make the same calls in the same order, with rows or without, in a recomputation too.
    """

    def __call__(self, rows_SD: Tensor, ends_X: Tensor) -> Received:
        """Rows sorted by expert, and where each expert's end -> those of all ranks for the experts of this one."""
        ...


@runtime_checkable
class DividesExperts(Protocol):
    """A module whose parameters have a row for each expert, so that expert ranks can divide them (``--parallel.expert``).

    ``exchange`` is ``None`` until the engine sets it, before the first forward. A divided parameter has ``part``: (which, of how many)
    equal runs of rows of the whole (``mt_core.whole_shape``).
    """

    exchange: ExpertExchange | None
