"""Losses of preferences: pairs of answers, one of which somebody chose."""

from __future__ import annotations

from .losses.base import PreferenceLoss
from .pairs import Pairs

__all__ = ["Pairs", "PreferenceLoss"]
