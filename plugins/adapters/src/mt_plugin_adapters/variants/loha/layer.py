"""The layer of LoHa. Shapes: E inputs, F outputs, R rank, S = R²."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core import LowRankConfig
from mt_core.adapters import LinearAdapter, LowRankLinear, PeftForm, Place, form_of_type, rank_keys, uniform
from mt_core.nn import TrainModel


class HadamardLinear(LowRankLinear):
    """A product, number by number, of two matrices of rank R is one of rank R², whose factors are made of theirs.

    So no (F, E) tensor is made, which takes less time as well while S is under E F / (E + F).
    """

    def __init__(self, base: nn.Module, *, rank: int, scale: float, dropout: float = 0.0, fp32: bool = False) -> None:
        super().__init__(base, scale=scale, dropout=dropout, fp32=fp32)
        self.hada_w1_a, self.hada_w2_a = (self.new_parameter(self.out_features, rank) for _ in range(2))
        self.hada_w1_b, self.hada_w2_b = (self.new_parameter(rank, self.in_features) for _ in range(2))

    def initialise(self, generator: Generator) -> None:
        """All drawn but the last, which is zero."""
        for drawn in (self.hada_w1_a, self.hada_w1_b, self.hada_w2_a):
            drawn.data.copy_(uniform(drawn, generator))
        self.hada_w2_b.data.zero_()

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Every row of A1 by every row of A2, (S, E), and the columns of B1 and B2 likewise, (F, S)."""
        b1_FR, a1_RE, b2_FR, a2_RE = (
            each.to(dtype) for each in (self.hada_w1_a, self.hada_w1_b, self.hada_w2_a, self.hada_w2_b)
        )
        return (a1_RE[:, None] * a2_RE[None]).flatten(0, 1), (b1_FR[:, :, None] * b2_FR[:, None]).flatten(1)


class Loha(LinearAdapter[LowRankConfig]):
    """Trains all four."""

    def layer(self, base: nn.Module, place: Place) -> HadamardLinear:
        """See ``LinearAdapter``."""
        config = self.config
        rank, scale = config.rank_of(place.name), config.scale_of(place.name)
        return HadamardLinear(base, rank=rank, scale=scale, dropout=config.dropout, fp32=config.fp32)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LOHA, whose scale is alpha / rank."""
        names = {each: each for each in ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")}
        ranks = rank_keys(self.config, model, alpha_key="alpha", alpha_of=self.config.plain_alpha_of)
        return form_of_type("LOHA", model, names, **ranks)
