"""The layer of MELoRA. Shapes: E = N·I inputs, F = N·O outputs, N parts, R rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, Place, uniform
from mt_plugin_adapters.added import AddedLinear

from .config import MeloraConfig


class MeloraLinear(AddedLinear):
    """``lora_A`` is (N, R, I), ``lora_B`` (N, O, R)."""

    def __init__(self, base: nn.Module, *, rank: int, parts: int, **options: Any) -> None:
        super().__init__(base, **options)
        self.lora_A = self.new_parameter(parts, rank, self.in_features // parts)
        self.lora_B = self.new_parameter(parts, self.out_features // parts, rank)

    def initialise(self, generator: Generator) -> None:
        """A uniform, B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_B.data.zero_()

    def added_output(self, x: Tensor) -> Tensor:
        """Each part through its own pair."""
        a_NRI, b_NOR = self.lora_A.to(x.dtype), self.lora_B.to(x.dtype)
        x_NTI = x.reshape(-1, len(a_NRI), a_NRI.shape[-1]).transpose(0, 1)
        out_NTO = x_NTI @ a_NRI.mT @ b_NOR.mT
        return out_NTO.transpose(0, 1).reshape(*x.shape[:-1], self.out_features)

    def delta_weight(self) -> Tensor:
        """scale · the block-diagonal of all products."""
        products_NOI = self.lora_B.float() @ self.lora_A.float()
        whole_FE: Tensor = torch.block_diag(*products_NOI)  # type: ignore[no-untyped-call]
        return self.scale * whole_FE


class Melora(LinearAdapter[MeloraConfig]):
    """Trains all pairs."""

    def layer(self, base: nn.Module, place: Place) -> MeloraLinear:
        """Raises ``UsageError`` where the parts do not divide inputs and outputs."""
        config, inputs, outputs = self.config, int(base.in_features), int(base.out_features)  # type: ignore[arg-type]
        if inputs % config.parts or outputs % config.parts:
            raise UsageError(
                f"adapter.parts: {config.parts} does not divide the {inputs} inputs and {outputs} outputs of {place.name};"
                " set --adapter.parts to a number that divides those of all projections"
            )
        return MeloraLinear(
            base,
            parts=config.parts,
            **config.arguments(place.name),
        )
