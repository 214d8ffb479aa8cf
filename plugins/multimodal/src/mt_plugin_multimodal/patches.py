"""Images to patches in the order of Qwen-VL, with what follows from their rows and columns. Torch is not imported.

An image keeps about its shape: sides are multiples of a square of patches that becomes one token, and the area is in bounds. Values and
order of the patches equal those of the image processors of https://github.com/huggingface/transformers that work with PIL.

Shapes: N patches of an image, C values of a patch (channels, frames, pixels), V windows, K patches of a window, P entries of a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mt_core.media import Measured

from .images import FILTERS, ImageReader

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

FRAMES = 2
"""Frames of a patch: an image is one that stands still."""
NONE = -1
"""Number of a patch that there is not."""


@dataclass(frozen=True, kw_only=True)
class PatchProcessor(ImageReader):
    """Reads images for an encoder of patches of ``patch`` pixels, squares of ``merge`` x ``merge`` of which become one token.

    ``window`` are the patches along the side of a window of attention, ``table`` those of the square that positions are learned for;
    0 where the encoder has none.
    """

    patch: int
    merge: int
    min_area: int
    max_area: int
    window: int = 0
    table: int = 0

    def measured(self, size: tuple[int, int], digest: bytes) -> Measured:
        """Return the patches of an image of this size."""
        rows, columns = self._grid(*size)
        return Measured(rows * columns, (1, rows, columns), digest)

    def arrays(self, image: Image.Image) -> Mapping[str, NDArray[np.generic]]:
        """Return ``pixels`` (N, C), and what ``places`` says."""
        rows, columns = self._grid(*image.size)
        resized = image.resize((columns * self.patch, rows * self.patch), FILTERS[self.filter])
        return {"pixels": self._patches(self.values(np.asarray(resized))), **self.places(rows, columns)}

    def dummy(self) -> tuple[Measured, Mapping[str, NDArray[np.generic]]]:
        """Return one token of zeros."""
        side = self.merge
        nothing = np.zeros((side * side, 3 * FRAMES * self.patch**2), np.float32)
        return Measured(side * side, (1, side, side), b""), {"pixels": nothing, **self.places(side, side)}

    def places(self, rows: int, columns: int) -> Mapping[str, NDArray[np.generic]]:
        """Return row and column of each patch (``cells``), and their numbers row by row (``raster``).

        Where there are windows: the patches of each, ``NONE`` behind the last, and which of them is an image's first. Where there is a
        table: the four entries next to a patch, and their weights.
        """
        cells_N2 = _cells(rows, columns, self.merge)
        found: dict[str, NDArray[np.generic]] = {"cells": cells_N2, "raster": np.lexsort(cells_N2.T[::-1])}
        if self.window:
            found["windows"] = _windows(cells_N2, self.window)
            found["begins"] = np.arange(len(found["windows"])) == 0
        if self.table:
            found["entries"], found["weights"] = _entries(cells_N2, (rows, columns), self.table)
        return found

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of patches."""
        factor = self.patch * self.merge
        high, wide = (round(side / factor) * factor for side in (height, width))
        if high * wide > self.max_area:
            shrink = math.sqrt(height * width / self.max_area)
            high, wide = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
        elif high * wide < self.min_area:
            grow = math.sqrt(self.min_area / (height * width))
            high, wide = (math.ceil(side * grow / factor) * factor for side in (height, width))
        return high // self.patch, wide // self.patch

    def _patches(self, image_3HW: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N, C), the patches of a square one after another; each has its frames within a channel."""
        _, height, width = image_3HW.shape
        rows, columns = (side // self.patch // self.merge for side in (height, width))
        cut = image_3HW.reshape(3, rows, self.merge, self.patch, columns, self.merge, self.patch)
        still = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        return np.repeat(still, FRAMES, 5).reshape(-1, 3 * FRAMES * self.patch**2)


def _cells(rows: int, columns: int, merge: int) -> NDArray[np.int64]:
    """(N, 2) row and column of each patch, in their order."""
    both = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return both.transpose(1, 3, 2, 4, 0).reshape(-1, 2)


def _windows(cells_N2: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """(V, K) the patches of each window, those at the lower and the right edge with fewer."""
    high, wide = (cells_N2 // side).T
    number_N = high * (int(wide.max()) + 1) + wide
    order_N = np.argsort(number_N, kind="stable")
    counts_V = np.bincount(number_N)
    inside_N = np.arange(len(order_N)) - (counts_V.cumsum() - counts_V).repeat(counts_V)
    windows_VK = np.full((len(counts_V), side * side), NONE)
    windows_VK[number_N[order_N], inside_N] = order_N
    return windows_VK


def _entries(
    cells_N2: NDArray[np.int64], size: tuple[int, int], side: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(N, P), (N, P) entries of a table of ``side`` x ``side`` and their weights: bilinear, the corners on those of the table."""
    lines, weights = [], []
    for cell_N, count in zip(cells_N2.T, size, strict=True):
        at_N = cell_N.astype(np.float32) * np.float32(side - 1) / np.float32(max(1, count - 1))
        floor_N = np.floor(at_N)
        share_N = at_N - floor_N
        lines.append(np.minimum(floor_N.astype(np.int64)[:, None] + np.arange(2), side - 1))
        weights.append(np.stack([1 - share_N, 1 - np.abs(share_N - 1)], 1))
    (high_N2, wide_N2), (down_N2, across_N2) = lines, weights
    entries_NP = (high_N2[:, :, None] * side + wide_N2[:, None]).reshape(-1, 4)
    return entries_NP, (down_N2[:, :, None] * across_N2[:, None]).reshape(-1, 4).astype(np.float32)
