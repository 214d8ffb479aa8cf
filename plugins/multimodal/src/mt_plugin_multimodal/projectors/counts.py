"""Checks of how many features an item has, without torch."""

from __future__ import annotations

from mt_core import DataError


def require_features(projector: str, features: int, tokens: int) -> int:
    """Return ``tokens``. Raises ``DataError`` for an item without features, of which nothing can be made."""
    if features < 1:
        raise DataError(
            f"an item has {features} features, and the {projector} needs at least 1; leave the item out of the row"
        )
    return tokens
