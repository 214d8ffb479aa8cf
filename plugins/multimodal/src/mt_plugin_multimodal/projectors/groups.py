"""Square groups of neighbours in the grids of items, one hidden state each. Torch is not imported.

Shapes: M groups of all items, G features of a group, which are ``factor`` x ``factor`` neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from mt_core import DataError
from mt_core.media import Grid

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def count_groups(projector: str, factor: int, grid: Grid | None) -> int:
    """Return how many groups an item has. Raises ``DataError`` for one without rows and columns that the factor divides."""
    if grid is None:
        raise DataError(
            f"the {projector} projector joins neighbours, and the item's features have no rows and columns; take the projector 'mlp', or"
            " leave keep_class off"
        )
    times, rows, columns = grid
    if not min(grid) or rows % factor or columns % factor:
        raise DataError(
            f"the {projector} projector joins {factor} x {factor} features, and the item has {rows} x {columns} of them; set its factor to"
            " a divisor of both, or the encoder's image to another side"
        )
    return times * (rows // factor) * (columns // factor)


def group_places(factor: int, features: Sequence[int], grids: Sequence[Grid | None]) -> NDArray[np.int64]:
    """Return (M, G), the places of each group's features, row by row, among those of all items.

    Features of an item without a grid are grouped as they stand.
    """
    import numpy as np

    starts = accumulate(features[:-1], initial=0)
    found = (_places(factor, number, grid) + start for number, grid, start in zip(features, grids, starts, strict=True))
    return np.concatenate(list(found))


@lru_cache(maxsize=256)
def _places(factor: int, features: int, grid: Grid | None) -> NDArray[np.int64]:
    import numpy as np

    places = np.arange(features)
    if grid is None:
        return places.reshape(-1, factor**2)
    times, rows, columns = grid
    cells = places.reshape(times, rows // factor, factor, columns // factor, factor)
    return cells.transpose(0, 1, 3, 2, 4).reshape(-1, factor**2)
