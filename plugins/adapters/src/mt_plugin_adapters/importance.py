"""Importance of ranks and numbers, as AdaLoRA (https://arxiv.org/abs/2303.10512, equations 9 to 11) and those after it say."""

from __future__ import annotations

from torch import Tensor

from mt_core import AdapterContext


def importance(
    context: AdapterContext, keys: tuple[str, str], seen: Tensor | None, *, decay: float, uncertainty_decay: float
) -> Tensor:
    """The product of two running means: of what is seen, and of how far that is from its mean.

    Both are own parameters of a layer, named by ``keys``, and kept as their square roots: half precision has no place for such small
    numbers. Without anything seen they stay.
    """
    mean, deviation = (context.read(key).float().square_() for key in keys)
    if seen is not None:
        mean.lerp_(seen, 1 - decay)
        deviation.lerp_((seen - mean).abs_(), 1 - uncertainty_decay)
        for key, value in zip(keys, (mean, deviation), strict=True):
            context.write(key, value.sqrt())
    return mean * deviation
