"""Items of different lengths beside one another, for projectors that see a whole item at once.

Lengths are host values, so nothing here waits for a device.

Shapes: I items, L features of the longest item, N features of all items, W width of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_items(features_NW: Tensor, features: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """(N, W) -> (I, L, W) with zeros behind shorter items, and (I, L), true where a feature is; ``None`` where all items are as long."""
    longest = max(features)
    if min(features) == longest:
        return features_NW.view(len(features), longest, -1), None
    rows = [item * longest + place for item, length in enumerate(features) for place in range(length)]
    rows_N = torch.tensor(rows, device=features_NW.device)
    padded = features_NW.new_zeros(len(features) * longest, features_NW.shape[1]).index_put((rows_N,), features_NW)
    lengths_I1 = torch.tensor(features, device=features_NW.device)[:, None]
    return padded.view(len(features), longest, -1), torch.arange(longest, device=features_NW.device) < lengths_I1
