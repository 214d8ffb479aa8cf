"""LoRA's layer, with values from a decomposition of the weight. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LoraLinear, Place

from .config import PissaConfig


class PissaLinear(LoraLinear):
    """See ``LoraLinear``."""

    def __init__(self, base: nn.Module, *, iterations: int | None = None, **options: Any) -> None:
        super().__init__(base, **options)
        self.iterations = iterations

    def initialise(self, generator: Generator) -> None:
        """A and B from the weight. What is frozen makes up for their rounding: only its own is left."""
        weight_FE = self.base_weight()
        u_FR, s_R, v_RE = self._largest(weight_FE, len(self.lora_A), generator)
        root_R = (s_R / self.scale).sqrt()
        self.lora_A.data.copy_(root_R[:, None] * v_RE)
        self.lora_B.data.copy_(u_FR * root_R)
        self.put_base_weight(weight_FE - self.delta_weight())

    def _largest(self, weight_FE: Tensor, rank: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Left vectors, values and right vectors of the R largest singular values."""
        if self.iterations is None:
            u_FK, s_K, v_KE = torch.linalg.svd(weight_FE, full_matrices=False)
            return u_FK[:, :rank], s_K[:rank], v_KE[:rank]
        with torch.random.fork_rng():  # svd_lowrank draws from the global generator alone
            torch.manual_seed(generator.initial_seed())
            u_FR, s_R, v_ER = torch.svd_lowrank(weight_FE, rank, niter=self.iterations)
        return u_FR, s_R, v_ER.mT


class Pissa(LinearAdapter[PissaConfig]):
    """Trains A and B."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> PissaLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return PissaLinear(
            base,
            iterations=config.iterations,
            **config.arguments(place.name),
        )
