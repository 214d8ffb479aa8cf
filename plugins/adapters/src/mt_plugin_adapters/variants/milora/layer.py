"""LoRA's layer, with values from a decomposition of the weight. Shapes: E inputs, F outputs, R rank, K the smaller of E and F."""

from __future__ import annotations

import torch
from torch import Generator, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, Place


class MiloraLinear(LoraLinear):
    """See ``LoraLinear``."""

    def initialise(self, generator: Generator) -> None:
        """A and B from the weight. What is frozen makes up for their rounding: only its own is left."""
        weight_FE, rank = self.base_weight(), len(self.lora_A)
        u_FK, s_K, v_KE = torch.linalg.svd(weight_FE, full_matrices=False)
        root_R = (s_K[-rank:] / self.scale).sqrt()
        self.lora_A.data.copy_(root_R[:, None] * v_KE[-rank:])
        self.lora_B.data.copy_(u_FK[:, -rank:] * root_R)
        self.put_base_weight(weight_FE - self.delta_weight())


class Milora(LinearAdapter[LowRankConfig]):
    """Trains A and B."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> MiloraLinear:
        """See ``LinearAdapter``."""
        return MiloraLinear.of(base, place, self.config)
