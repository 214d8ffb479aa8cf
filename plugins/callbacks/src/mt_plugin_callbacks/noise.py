"""Annealed Gaussian noise on the gradients (https://arxiv.org/abs/1511.06807)."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from mt_core import CallbackContext, MtConfig

if TYPE_CHECKING:
    from torch import Generator


class GradientNoiseConfig(MtConfig):
    """Amount of noise, and how fast it fades."""

    eta: float = Field(
        0.01, gt=0, description="variance in the first step, in units of the squared gradient of one element"
    )
    gamma: float = Field(0.55, ge=0, description="the variance is eta / (1 + step) ** gamma")


class GradientNoise:
    """Adds the noise to what the optimizer gets, after clipping, as the paper does.

    The numbers follow from (``train.seed``, step, rank), so a resumed run needs no state. Under ZeRO each rank draws those of
    its own slices; other layouts draw other numbers.
    """

    def __init__(self, config: GradientNoiseConfig) -> None:
        self._config = config
        self._deviation = 0.0
        self._seed = 0
        self._generator: Generator | None = None

    def on_model_built(self, context: CallbackContext) -> None:
        """Stand before the optimizer's step, where every ZeRO stage has the gradients that it owns."""
        assert context.weights is not None, "a run has weights"
        context.weights.optimizer.register_step_pre_hook(self._add)

    def on_before_optimizer_step(self, context: CallbackContext) -> None:
        """A new generator for each step."""
        assert context.weights is not None, "a run has weights"
        own = context.weights.rank if context.weights.sliced else 0
        told = f"{context.config['train']['seed']}:{context.step}:{own}"
        self._seed = int.from_bytes(hashlib.sha256(told.encode()).digest()[:7], "little")
        self._generator = None
        # a negative power fades to 0, where a positive one would overflow
        self._deviation = math.sqrt(self._config.eta * (1 + context.step) ** -self._config.gamma)

    def _add(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        import torch

        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if (gradient := parameter.grad) is None:
                continue
            if self._generator is None:
                self._generator = torch.Generator(gradient.device).manual_seed(self._seed)
            noise = torch.randn(gradient.shape, generator=self._generator, device=gradient.device, dtype=gradient.dtype)
            gradient.add_(noise, alpha=self._deviation)
