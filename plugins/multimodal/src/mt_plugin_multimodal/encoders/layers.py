"""Layers of an encoder up to the one whose output is the features."""

from __future__ import annotations


def layers_up_to(layer: int | None, layers: int) -> int:
    """Return how many of ``layers`` are built for the option ``layer``: 0 is in front of the first, -1 and ``None`` behind the last."""
    if layer is None:
        return layers
    return layer if layer >= 0 else layers + 1 + layer
