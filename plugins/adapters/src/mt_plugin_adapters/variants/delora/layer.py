"""The layer of DeLoRA. Shapes: E inputs, F outputs, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, LowRankLinear, PeftForm, Place, form_of_type, uniform
from mt_core.nn import TrainModel
from mt_plugin_adapters.rank_config import rank_pattern

from .config import DeloraConfig

SHORTEST = 1e-4
"""Least length of a direction: shorter ones count as this long, as in peft."""


class DeloraLinear(LowRankLinear):
    """``delora_A`` is (R, E), ``delora_B`` (F, R), ``delora_lambda`` (1), ``delora_w_norm`` (E), which is frozen."""

    trained = ("delora_A", "delora_B", "delora_lambda")

    def __init__(self, base: nn.Module, *, rank: int, strength: float, **options: Any) -> None:
        super().__init__(base, scale=1.0, **options)
        self.strength = strength
        self.delora_A = self.new_parameter(rank, self.in_features)
        self.delora_B = self.new_parameter(self.out_features, rank)
        self.delora_lambda = self.new_parameter(1)
        self.delora_w_norm = self.new_parameter(self.in_features)

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero, the lengths those of the weight's columns."""
        self.delora_A.data.copy_(uniform(self.delora_A, generator))
        self.delora_B.data.zero_()
        self.delora_lambda.data.fill_(self.strength)
        self.delora_w_norm.data.copy_(self.base_weight().norm(dim=0))

    def pair(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A with the strengths of its rows and the lengths of the weight's columns, and B; lengths are computed in fp32."""
        a_RE, b_FR = self.delora_A.float(), self.delora_B.float()
        lengths_R = a_RE.norm(dim=1).clamp_min(SHORTEST) * b_FR.norm(dim=0).clamp_min(SHORTEST)
        strengths_R = self.delora_lambda.float() / (len(lengths_R) * lengths_R)
        return (strengths_R[:, None] * a_RE * self.delora_w_norm.float()).to(dtype), b_FR.to(dtype)


class Delora(LinearAdapter[DeloraConfig]):
    """Trains A, B and λ."""

    def layer(self, base: nn.Module, place: Place) -> DeloraLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return DeloraLinear(
            base,
            rank=config.rank_of(place.name),
            strength=config.strength,
            dropout=config.dropout,
            fp32=config.fp32,
        )

    def peft_form(self, model: TrainModel) -> PeftForm:
        """DELORA."""
        names = {each: each for each in (*DeloraLinear.trained, "delora_w_norm")}
        training = ("delora_lambda", "lambda_pattern")
        return form_of_type(
            "DELORA",
            model,
            names,
            training=training,
            r=self.config.rank,
            rank_pattern=rank_pattern(self.config, model),
            delora_lambda=self.config.strength,
        )
