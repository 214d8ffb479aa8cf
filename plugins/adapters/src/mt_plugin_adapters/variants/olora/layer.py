"""LoRA's layer, with values from a QR decomposition of the weight. Shapes: E inputs, F outputs, R rank, K the smaller of E and F."""

from __future__ import annotations

import torch
from torch import Generator, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, Place


class OloraLinear(LoraLinear):
    """See ``LoraLinear``."""

    def initialise(self, generator: Generator) -> None:
        """A and B from the weight. What is frozen makes up for their rounding: only its own is left."""
        weight_FE = self.base_weight()
        q_FK, r_KE = torch.linalg.qr(weight_FE)
        rank = len(self.lora_A)
        self.lora_A.data.copy_(r_KE[:rank])
        self.lora_B.data.copy_(q_FK[:, :rank])
        self.put_base_weight(weight_FE - self.delta_weight())


class Olora(LinearAdapter[LowRankConfig]):
    """Trains A and B."""

    rewrites_base = True

    def layer(self, base: nn.Module, place: Place) -> OloraLinear:
        """See ``LinearAdapter``."""
        return OloraLinear.of(base, place, self.config)
