"""The layer of OFT. Shapes: E = N·K inputs, N blocks of K, P = K (K - 1) / 2 numbers above a diagonal."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core import UsageError, notice
from mt_core.adapters import LinearAdapter, PeftForm, Place, form_of_type, targets_of
from mt_core.nn import TrainModel
from mt_plugin_adapters.added import SeriesLinear
from mt_plugin_adapters.rotations import block_product, cayley, cayley_neumann

from .config import OftConfig

TERMS_OF_PEFT = 5
"""Number of terms in peft's config; ours has the exact inverse."""

USUAL = 32
"""Inputs of a block where nobody says how many, and their number allows it."""


class OftLinear(SeriesLinear):
    """``oft_R`` is (N, P), or (1, P) where the blocks share it; row by row, as in peft."""

    def __init__(
        self, base: nn.Module, *, block_size: int, shared_blocks: bool, neumann_terms: int | None, **options: Any
    ) -> None:
        super().__init__(base, **options)
        self.block_size, self.neumann_terms = block_size, neumann_terms
        blocks = 1 if shared_blocks else self.in_features // block_size
        self.oft_R = self.new_parameter(blocks, block_size * (block_size - 1) // 2)

    def initialise(self, generator: Generator) -> None:
        """No rotation."""
        self.oft_R.data.zero_()

    def transformed_input(self, x: Tensor) -> Tensor:
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


def common_divisor(numbers: Iterable[int], most: int) -> int:
    """The largest number up to ``most`` that divides all of them."""
    whole = gcd(*numbers)
    return max(each for each in range(1, most + 1) if whole % each == 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor that is nearest to what is wanted, of two the smaller one: what peft takes where that divides nothing."""
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    return min(divisors, key=lambda each: (abs(each - wanted), each))


class Oft(LinearAdapter[OftConfig]):
    """Trains the rotations."""

    def __init__(self, config: OftConfig) -> None:
        super().__init__(config)
        self.block_size = config.block_size

    def inject(self, model: TrainModel) -> None:
        """See ``LinearAdapter``. Raises ``UsageError`` where the blocks do not divide the inputs."""
        config = self.config
        if config.block_size is None and config.blocks is None:
            inputs = {int(base.in_features) for base in targets_of(model, config).values()}  # type: ignore[arg-type]
            self.block_size = common_divisor(inputs, USUAL)
            if self.block_size == 1:
                raise UsageError(
                    f"adapter.block_size: no number from 2 to {USUAL} divides the inputs of all projections, which have"
                    f" {', '.join(map(str, sorted(inputs)))}; set --adapter.blocks, or fewer --adapter.targets"
                )
            if self.block_size != USUAL and not self.has_values:
                notice(
                    f"notice: adapter oft rotates blocks of {self.block_size} inputs: the largest number up to {USUAL} that divides"
                    " those of all projections"
                )
        super().inject(model)

    def layer(self, base: nn.Module, place: Place) -> OftLinear:
        """Raises ``UsageError`` where the blocks do not divide the inputs."""
        config, inputs = self.config, int(base.in_features)  # type: ignore[arg-type]
        return OftLinear(
            base,
            block_size=self._size(inputs, place.name),
            shared_blocks=config.shared_blocks,
            neumann_terms=config.neumann_terms,
            fp32=config.fp32,
        )

    def _size(self, inputs: int, name: str) -> int:
        """Inputs of a block: as the options say, or, of what peft has trained, the nearest to that which is possible."""
        key, wanted = ("block_size", self.block_size) if self.block_size else ("blocks", self.config.blocks)
        assert wanted is not None, "one of the two has a number"
        number = nearest_divisor(inputs, wanted) if self.has_values else wanted
        if inputs % number:
            raise UsageError(
                f"adapter.{key}: {wanted} does not divide the {inputs} inputs of {name}; set --adapter.{key} to a number that"
                " divides those of all projections, or leave it out"
            )
        return number if key == "block_size" else inputs // number

    def peft_form(self, model: TrainModel) -> PeftForm:
        """OFT."""
        config = self.config
        return form_of_type(
            "OFT",
            model,
            {"oft_R": "oft_R.weight"},
            transposes=True,
            training=("eps",),  # of the constrained form alone
            r=config.blocks or 0,
            oft_block_size=self.block_size or 0,
            block_share=config.shared_blocks,
            use_cayley_neumann=config.neumann_terms is not None,
            num_cayley_neumann_terms=config.neumann_terms or TERMS_OF_PEFT,
        )
