"""The one place where generation runs the model.

Shapes: B rows, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mt_core.nn import Batch, KVCache, TrainModel

Forward = Callable[[TrainModel, Batch, KVCache], Tensor]
"""``forward(model, batch, cache)``: run the model on T more tokens of each row, which the cache gets, and return the (B, V) logits
after the last of them. All that generation computes with a model goes through one such function, so that a caller can put another
around ``last_logits``, for instance one with which every rank runs equally many forwards."""


def last_logits(model: TrainModel, batch: Batch, cache: KVCache) -> Tensor:
    """(B, V) logits after the last token of each row."""
    hidden_BTD = model(batch, cache)
    logits_BV: Tensor = model.head(hidden_BTD[:, -1])
    return logits_BV


def make_batch(ids_BT: Tensor, positions_BT: Tensor) -> Batch:
    """Rows of one document each, on the device of the ids; there are no labels in generation."""
    zeros_BT = torch.zeros_like(ids_BT)
    return Batch(ids_BT, zeros_BT, positions_BT, zeros_BT)


def next_batch(tokens: Sequence[int], positions: Sequence[int], device: torch.device) -> Batch:
    """One more token of each row."""
    both_2B1 = torch.tensor([tokens, positions], device=device)[:, :, None]
    return make_batch(both_2B1[0], both_2B1[1])
