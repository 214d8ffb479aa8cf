"""LoRA's layer, with values from what quantization has lost. Shapes: E inputs, F outputs, R rank, K the smaller of E and F."""

from __future__ import annotations

import torch
from torch import Generator, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LoraLinear, PeftForm, Place, lora_form
from mt_core.nn import TrainModel


class LoftqLinear(LoraLinear):
    """See ``LoraLinear``. A layer that is not quantized begins as LoRA's."""

    def initialise(self, generator: Generator) -> None:
        """A and B from the difference of the weight as it was and as it is stored."""
        if "weight" in self._parameters:
            super().initialise(generator)
            return
        rank = len(self.lora_A)
        u_FK, s_K, v_KE = torch.linalg.svd(self.original_weight() - self.base_weight(), full_matrices=False)
        root_R = (s_K[:rank] / self.scale).sqrt()
        self.lora_A.data.copy_(root_R[:, None] * v_KE[:rank])
        self.lora_B.data.copy_(u_FK[:, :rank] * root_R)


class Loftq(LinearAdapter[LowRankConfig]):
    """Trains A and B."""

    base_is_reference = False  # over a quantized one
    corrects_base = True
    """Whether it has what the base lost when it was quantized, which the weights as they were would get twice (``mt-export --merge``)."""

    def layer(self, base: nn.Module, place: Place) -> LoftqLinear:
        """See ``LinearAdapter``."""
        return LoftqLinear.of(base, place, self.config)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LORA: how it began and was trained is not in its files."""
        return lora_form(self.config, model)
