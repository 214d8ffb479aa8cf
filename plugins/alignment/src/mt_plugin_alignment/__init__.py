"""Losses of preferences, and rewards of answers that a model writes: what a plugin of your own is written against."""

from __future__ import annotations

from .losses.base import PreferenceLoss
from .pairs import Pairs
from .reward_functions.base import Answer, Reward, RewardOptions

__all__ = ["Answer", "Pairs", "PreferenceLoss", "Reward", "RewardOptions"]
