"""The loss of values that a critic gives tokens. Shapes: n trained tokens. torch is imported by nobody here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def clip_values(values_n: Tensor, old_n: Tensor, clip: float) -> Tensor:
    """Return values that are within ``clip`` of what they were when the answers were written, (n,)."""
    return values_n.clamp(old_n - clip, old_n + clip)  # to the bit what it was, where it is within


def value_loss(values_n: Tensor, old_n: Tensor, returns_n: Tensor, *, clip: float | None) -> Tensor:
    """Return ½ max((V - R)², (clip(V, V_old ± c) - R)²), (n,): a value that moves further than c gains nothing by it.

    From the implementation of https://arxiv.org/abs/1707.06347 (https://arxiv.org/abs/2005.12729, section 2); without a clip ½ (V - R)².
    """
    squares_n = (values_n - returns_n).square()
    if clip is not None:
        squares_n = squares_n.maximum((clip_values(values_n, old_n, clip) - returns_n).square())
    return squares_n / 2
