"""W x + scale · blockdiag(Bᵢ Aᵢ) x. Shapes: E inputs, F outputs, R rank of a block, N blocks, e and f parts of E and F."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import uniform
from mt_core.nn import AdaptedLinear


class BlockLinear(AdaptedLinear):
    """The A of all blocks below each other in ``lora_A``, (N R, e), and the B of all in ``lora_B``, (F, R)."""

    def __init__(
        self, base: nn.Module, *, blocks: int, rank: int, scale: float, dropout: float = 0.0, fp32: bool = False
    ) -> None:
        super().__init__(base)
        self.blocks, self.scale, self.fp32 = blocks, scale, fp32
        self.lora_A = self.new_parameter(blocks * rank, self.in_features // blocks)
        self.lora_B = self.new_parameter(self.out_features, rank)
        self.dropout = nn.Dropout(dropout) if dropout else None

    def initialise(self, generator: Generator) -> None:
        """A uniform, by the inputs of a block; B zero."""
        self.lora_A.data.copy_(uniform(self.lora_A, generator))
        self.lora_B.data.zero_()

    def parts(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A (N, R, e) and B (N, f, R) by block."""
        a_NRe = self.lora_A.to(dtype).view(self.blocks, -1, self.lora_A.shape[1])
        return a_NRe, self.lora_B.to(dtype).view(self.blocks, -1, self.lora_B.shape[1])

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F)."""
        out = self.base_output(x)
        dtype = torch.float32 if self.fp32 else out.dtype
        a_NRe, b_NfR = self.parts(dtype)
        inputs = (x if self.dropout is None else self.dropout(x)).to(dtype)
        inner = torch.einsum("...ne,nre->...nr", inputs.reshape(*x.shape[:-1], self.blocks, -1), a_NRe)
        added = torch.einsum("...nr,nfr->...nf", inner, b_NfR).flatten(-2)
        return out + (self.scale * added).to(out.dtype)

    def delta_weight(self) -> Tensor:
        """scale · blockdiag(Bᵢ Aᵢ)."""
        a_NRe, b_NfR = self.parts(torch.float32)
        delta_FE: Tensor = torch.block_diag(*(b_NfR @ a_NRe))  # type: ignore[no-untyped-call]
        return self.scale * delta_FE
