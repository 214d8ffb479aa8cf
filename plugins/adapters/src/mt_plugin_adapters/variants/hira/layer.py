"""The layer of HiRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, PeftForm, Place, form_of_type, uniform
from mt_core.nn import TrainModel
from mt_plugin_adapters.added import DenseLinear

from .config import HiraConfig


class HiraLinear(DenseLinear):
    """``hira_A`` is (R, E), ``hira_B`` (F, R)."""

    def __init__(self, base: nn.Module, *, rank: int, **options: Any) -> None:
        super().__init__(base, scale=1.0, **options)
        self.hira_A = self.new_parameter(rank, self.in_features)
        self.hira_B = self.new_parameter(self.out_features, rank)

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero."""
        self.hira_A.data.copy_(uniform(self.hira_A, generator))
        self.hira_B.data.zero_()

    def update(self, dtype: torch.dtype) -> Tensor:
        """W ⊙ (B A)."""
        weight_FE = self.weight if self.is_plain else self.base_weight()
        return weight_FE.to(dtype) * (self.hira_B.to(dtype) @ self.hira_A.to(dtype))


class Hira(LinearAdapter[HiraConfig]):
    """Trains A and B."""

    def layer(self, base: nn.Module, place: Place) -> HiraLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return HiraLinear(base, rank=config.rank, dropout=config.dropout, fp32=config.fp32)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """HIRA."""
        config, names = self.config, {each: each for each in ("hira_A", "hira_B")}
        options = {"r": config.rank, "hira_dropout": config.dropout}
        return form_of_type("HIRA", model, names, transposes=True, training=("hira_dropout",), **options)
