"""The layer of BOFT. Shapes: E = N·K inputs, F outputs, M factors of N blocks of K x K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Generator, Tensor, nn

from mt_core import UsageError
from mt_core.adapters import LinearAdapter, PeftForm, Place, adapted_layers, form_of_type
from mt_core.nn import TrainModel
from mt_plugin_adapters.added import SeriesLinear
from mt_plugin_adapters.rotations import block_product, cayley

from .config import BoftConfig


class BoftLinear(SeriesLinear):
    """``boft_R`` is (M, N, K, K), of which the skew part counts, ``boft_s`` (F): a vector, which no weight decay takes to 0."""

    def __init__(self, base: nn.Module, *, block_size: int, factors: int, **options: Any) -> None:
        super().__init__(base, **options)
        self.boft_R = self.new_parameter(factors, self.in_features // block_size, block_size, block_size)
        self.boft_s = self.new_parameter(self.out_features)

    def initialise(self, generator: Generator) -> None:
        """No rotation, gains of 1."""
        self.boft_R.data.zero_()
        self.boft_s.data.fill_(1)

    def transformed_input(self, x: Tensor) -> Tensor:
        """x B_m … B_1: the last factor of the product that peft forms comes first."""
        free = self.boft_R.float()
        blocks_MNKK = cayley(0.5 * (free - free.mT))
        half = blocks_MNKK.shape[-1] // 2
        for order in reversed(range(len(blocks_MNKK))):
            together = block_product(_interleave(x, 2**order, half), blocks_MNKK[order])
            x = _together(together, 2**order, half)
        return x

    def adapted_output(self, x: Tensor) -> Tensor:
        """(…, E) -> (…, F). The bias is not scaled."""
        out = super().adapted_output(x)
        gain_F = self.boft_s.to(out.dtype)
        return out * gain_F if self.bias is None else out * gain_F + self.bias * (1 - gain_F)

    def merged_weight(self) -> Tensor:
        """diag(s) W T."""
        return self.boft_s.float()[:, None] * super().merged_weight()


def _interleave(x: Tensor, pairs: int, half: int) -> Tensor:
    """Interleave of each ``2 · pairs`` pieces of ``half`` numbers the first and the second half, interleaved."""
    if pairs == 1:
        return x
    return x.reshape(*x.shape[:-1], -1, 2, pairs, half).transpose(-3, -2).reshape(x.shape)


def _together(x: Tensor, pairs: int, half: int) -> Tensor:
    """The inverse: the pieces with even, then those with odd numbers."""
    if pairs == 1:
        return x
    return x.reshape(*x.shape[:-1], -1, pairs, 2, half).transpose(-3, -2).reshape(x.shape)


class Boft(LinearAdapter[BoftConfig]):
    """Trains rotations and gains."""

    def layer(self, base: nn.Module, place: Place) -> BoftLinear:
        """Raises ``UsageError`` where blocks and factors do not fit the inputs."""
        config, inputs = self.config, int(base.in_features)  # type: ignore[arg-type]
        size, rest = (config.block_size, 0) if config.blocks is None else divmod(inputs, config.blocks)
        whole = size * 2 ** (config.factors - 1)
        if rest or inputs % whole or (config.factors > 1 and size % 2):
            keys = f"blocks of {size}" if config.blocks is None else f"{config.blocks} blocks"
            raise UsageError(
                f"adapter.factors: {config.factors} factors of {keys} do not fit the {inputs} inputs of"
                f" {place.name}; block_size · 2^(factors - 1), here {whole}, has to divide them, and block_size to be even with"
                " several factors (--adapter.block_size or --adapter.blocks, --adapter.factors)"
            )
        return BoftLinear(base, block_size=size, factors=config.factors, fp32=config.fp32)

    def peft_form(self, model: TrainModel) -> PeftForm:
        """BOFT, whose gains are a column there."""
        config, names = self.config, {each: each for each in ("boft_R", "boft_s")}
        sizes = {
            "boft_block_size": 0 if config.blocks else config.block_size,
            "boft_block_num": config.blocks or 0,
            "boft_n_butterfly_factor": config.factors,
        }
        form = form_of_type("BOFT", model, names, transposes=True, training=("boft_dropout",), **sizes)
        columns = {f"{name}.boft_s": (layer.out_features, 1) for name, layer in adapted_layers(model)}
        return replace(form, shapes=columns)
