"""The layer of OFT. Shapes: E = N·K inputs, N blocks of K, P = K (K - 1) / 2 numbers above a diagonal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, PeftForm, Place, typed_form
from mt_core.nn import TrainModel
from mt_plugin_adapters.added import SeriesLinear
from mt_plugin_adapters.rotations import block_product, cayley, cayley_neumann

from .config import OftConfig

TERMS_OF_PEFT = 5
"""What its config says where the inverse is exact."""


class OftLinear(SeriesLinear):
    """``oft_R`` is (N, P), or (1, P) where the blocks share it; row by row, as in peft."""

    def __init__(
        self, base: nn.Module, *, block_size: int, shared_blocks: bool, neumann_terms: int | None, **options: Any
    ) -> None:
        super().__init__(base, **options)
        self.block_size, self.neumann_terms = block_size, neumann_terms
        blocks = 1 if shared_blocks else self.in_features // block_size
        self.oft_R = self.own(blocks, block_size * (block_size - 1) // 2)

    def initialise(self, generator: Generator) -> None:
        """No rotation."""
        self.oft_R.data.zero_()

    def turned(self, x: Tensor) -> Tensor:
        """x R."""
        skew_NKK = self._skew()
        blocks = cayley(skew_NKK) if self.neumann_terms is None else cayley_neumann(skew_NKK, self.neumann_terms)
        return block_product(x, blocks)

    def _skew(self) -> Tensor:
        size, numbers_NP = self.block_size, self.oft_R.float()
        rows_P, columns_P = torch.triu_indices(size, size, 1, device=numbers_NP.device)
        upper_NKK = numbers_NP.new_zeros(len(numbers_NP), size, size)
        upper_NKK = upper_NKK.index_put(
            (torch.arange(len(numbers_NP), device=rows_P.device)[:, None], rows_P, columns_P), numbers_NP
        )
        return upper_NKK - upper_NKK.mT


class Oft(LinearAdapter[OftConfig]):
    """Trains the rotations."""

    def layer(self, base: nn.Module, place: Place) -> OftLinear:
        """Raises ``UsageError`` where the blocks do not divide the inputs."""
        config, inputs = self.config, int(base.in_features)  # type: ignore[arg-type]
        if inputs % config.block_size:
            raise UsageError(
                f"adapter.block_size: {config.block_size} does not divide the {inputs} inputs of {place.name};"
                " set --adapter.block_size to a number that divides those of all projections"
            )
        return OftLinear(
            base,
            block_size=config.block_size,
            shared_blocks=config.shared_blocks,
            neumann_terms=config.neumann_terms,
            fp32=config.fp32,
        )

    def peft_form(self, model: TrainModel) -> PeftForm:
        """OFT."""
        config = self.config
        return typed_form(
            "OFT",
            model,
            {"oft_R": "oft_R.weight"},
            transposes=True,
            training=("eps",),  # of the constrained form alone
            r=0,
            oft_block_size=config.block_size,
            block_share=config.shared_blocks,
            use_cayley_neumann=config.neumann_terms is not None,
            num_cayley_neumann_terms=config.neumann_terms or TERMS_OF_PEFT,
        )
