"""The layer of RidgeLoRA. Shapes: E inputs, R rank."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import Place
from mt_core.nn import low_rank
from mt_plugin_adapters.added import SeriesLinear

from .config import RidgeLoraConfig

PARTS = ("lora_A", "lora_B", "lora_ridge", "lora_lambda")


class RidgeLinear(SeriesLinear):
    """``lora_A`` is (R, E), ``lora_B`` (E, R), ``lora_ridge`` (E), ``lora_lambda`` (1)."""

    def __init__(self, base: nn.Module, place: Place, config: RidgeLoraConfig) -> None:
        super().__init__(base, fp32=config.fp32)
        self.config, self.layers = config, len(place.targets)
        self.scale, rank = config.scale_of(place.name), config.rank_of(place.name)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None
        self.lora_A, self.lora_B = (
            self.new_parameter(rank, self.in_features),
            self.new_parameter(self.in_features, rank),
        )
        self.lora_ridge, self.lora_lambda = self.new_parameter(self.in_features), self.new_parameter(1)

    def initialise(self, generator: Generator) -> None:
        """Fill as in algorithm 1."""
        rank, inputs = self.lora_A.shape
        drawn_R = torch.empty(rank).normal_(self.config.ridge_mean, self.config.ridge_deviation, generator=generator)
        ridge_E = torch.cat([drawn_R.sigmoid(), torch.ones(inputs - rank)])
        a_RE = torch.empty(rank, inputs).normal_(std=rank**-0.5, generator=generator)
        b_ER = (1 - ridge_E)[:, None] * torch.linalg.pinv(a_RE) / self.scale
        for name, value in zip(PARTS, (a_RE, b_ER, ridge_E, torch.ones(1)), strict=True):
            getattr(self, name).data.copy_(value)

    def transformed_input(self, x: Tensor) -> Tensor:
        """(λ Σ + s · B A) x. Dropout is on the inputs of the pair alone."""
        inputs = x if self.dropout is None else self.dropout(x)
        ridged = x * (self.lora_lambda * self.lora_ridge).to(x.dtype)
        return low_rank(inputs, self.lora_A.to(x.dtype), self.lora_B.to(x.dtype), self.scale, into=ridged)

    def merged_weight(self) -> Tensor:
        """W (λ Σ + s · B A), without dropout."""
        ridge_EE = torch.diag(self.lora_lambda.float() * self.lora_ridge.float())
        return self.base_weight() @ (ridge_EE + self.scale * self.lora_B.float() @ self.lora_A.float())


def squashing_gradients(parts: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the gradients of the nuclear norm of ``λ Σ + s · B A - I``, for each part."""
    with torch.enable_grad():
        given = {name: value.detach().requires_grad_() for name, value in parts.items()}
        whole_EE = (
            torch.diag(given["lora_lambda"] * given["lora_ridge"] - 1) + scale * given["lora_B"] @ given["lora_A"]
        )
        norm = torch.linalg.matrix_norm(whole_EE, "nuc")
        return dict(zip(given, torch.autograd.grad(norm, list(given.values())), strict=True))
