"""Places of tokens in time, rows and columns (M-RoPE, https://arxiv.org/abs/2409.12191, section 2.1), from the spans of media.

Shapes: N tokens of all documents, S documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mt_core.rows import Grid, MediaSpan


def grid_positions(
    media: Iterable[MediaSpan], lengths_S: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Return (N, 3), the time, row and column of each token in its document; ``None`` where no item has rows and columns.

    A token of text is one further on in all three. Those of an item have their place in its grid, and what follows goes on behind its
    longer side. An item without a grid stands as text does.
    """
    placed = [(span, cells) for span in media if (cells := span.cells) is not None]
    if not placed:
        return None
    ends_S = np.cumsum(lengths_S)
    steps_N, inside_N3 = np.ones(ends_S[-1], np.int64), np.zeros((ends_S[-1], 3), np.int64)
    for span, cells in placed:
        here = slice(span.start, span.start + span.tokens)
        inside_N3[here] = np.indices(cells).reshape(3, -1).T
        steps_N[here] = 0
        steps_N[here.stop - 1] = _reach(cells)
    before_N = np.concatenate([[0], steps_N.cumsum()])
    begins_N = before_N[ends_S - lengths_S].repeat(lengths_S)
    found_N3: NDArray[np.int64] = inside_N3 + (before_N[:-1] - begins_N)[:, None]
    return found_N3


def shift_behind(media: Iterable[MediaSpan]) -> int:
    """Return how far behind these items the place of a token is from its number in the text; 0 or less where items are larger than long."""
    return sum(_reach(cells) - span.tokens for span in media if (cells := span.cells) is not None)


def _reach(cells: Grid) -> int:
    return max(cells[1:])
