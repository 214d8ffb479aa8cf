"""Losses of preferences, rewards of answers that a model writes, and what writes them: what a plugin of your own is written against."""

from __future__ import annotations

from mt_train import Policy

from .losses.base import PreferenceLoss
from .pairs import Pairs
from .reward_functions.base import Answer, Reward, RewardOptions
from .samplers.base import Completion, Sampler

__all__ = ["Answer", "Completion", "Pairs", "Policy", "PreferenceLoss", "Reward", "RewardOptions", "Sampler"]
