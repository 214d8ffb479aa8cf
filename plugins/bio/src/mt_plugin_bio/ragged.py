"""Items of several lengths, side by side for modules that want a rectangle.

Shapes: I items, L features of the longest, N features of all items, W width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Ragged:
    """The places of items in a rectangle (I, L), each from its row's start. Lengths are known on the host: no device is waited for."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.items, self.longest = len(lengths), max(lengths)
        places = [row * self.longest + np.arange(length) for row, length in enumerate(lengths)]
        self.places_N = torch.from_numpy(np.concatenate(places)).to(device)
        self._lengths_I1 = torch.tensor(lengths, device=device).unsqueeze(1)

    def mask(self) -> Tensor:
        """Return (I, L), true where an item has a feature."""
        return torch.arange(self.longest, device=self.places_N.device) < self._lengths_I1

    def pad(self, x_NW: Tensor) -> Tensor:
        """(N, W) -> (I, L, W), zeros behind each item."""
        padded = x_NW.new_zeros(self.items * self.longest, x_NW.shape[-1]).index_copy(0, self.places_N, x_NW)
        return padded.view(self.items, self.longest, -1)

    def flatten(self, x_ILW: Tensor) -> Tensor:
        """(I, L, W) -> (N, W)."""
        return x_ILW.flatten(0, 1).index_select(0, self.places_N)
