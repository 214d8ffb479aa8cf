"""The layer of LoKr. Shapes: E = M·N inputs, F = L·K outputs, R rank; C is (L, M), D is (K, N)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn

from mt_core.adapters import LinearAdapter, PeftForm, Place, form_of_type, rank_keys, uniform
from mt_core.nn import TrainModel
from mt_plugin_adapters.added import AddedLinear

from .config import LokrConfig


class KroneckerLinear(AddedLinear):
    """``lokr_w1`` is C or ``lokr_w1_a`` · ``lokr_w1_b``, ``lokr_w2`` is D or ``lokr_w2_a`` · ``lokr_w2_b``."""

    def __init__(
        self, base: nn.Module, *, rank: int, factor: int | None = None, decompose_both: bool = False, **options: Any
    ) -> None:
        super().__init__(base, **options)
        (out_small, out_large), (in_small, in_large) = (
            two_factors(size, factor) for size in (self.out_features, self.in_features)
        )
        self._declare("lokr_w1", out_small, in_small, rank if decompose_both else None)
        self._declare("lokr_w2", out_large, in_large, rank)
        self.inner = in_small, in_large

    def initialise(self, generator: Generator) -> None:
        """All drawn but C, or the first of its factors, which is zero."""
        for name, each in self.own_parameters():
            each.data.copy_(uniform(each, generator))
            if name in ("lokr_w1", "lokr_w1_a"):
                each.data.zero_()

    def added_output(self, x: Tensor) -> Tensor:
        """D on the second dimension of x as (M, N), then C on the first."""
        out = self._second(x.reshape(*x.shape[:-1], *self.inner))
        return (self._full_factor("lokr_w1", x.dtype) @ out).flatten(-2)

    def delta_weight(self) -> Tensor:
        """scale · C ⊗ D."""
        return self.scale * torch.kron(
            self._full_factor("lokr_w1", torch.float32), self._full_factor("lokr_w2", torch.float32)
        )

    def _declare(self, name: str, rows: int, columns: int, rank: int | None) -> None:
        if rank is None or rank >= max(rows, columns) / 2:
            self.register_parameter(name, self.new_parameter(rows, columns))
        else:
            self.register_parameter(f"{name}_a", self.new_parameter(rows, rank))
            self.register_parameter(f"{name}_b", self.new_parameter(rank, columns))

    def _factors(self, name: str, dtype: torch.dtype) -> list[Tensor]:
        found = (self._parameters.get(name + end) for end in ("", "_a", "_b"))
        return [each.to(dtype) for each in found if each is not None]

    def _full_factor(self, name: str, dtype: torch.dtype) -> Tensor:
        first, *rest = self._factors(name, dtype)
        return first @ rest[0] if rest else first

    def _second(self, x: Tensor) -> Tensor:
        """D on the last dimension, factor by factor: (…, N) -> (…, K)."""
        for factor in reversed(self._factors("lokr_w2", x.dtype)):
            x = x @ factor.mT
        return x


def two_factors(size: int, factor: int | None) -> tuple[int, int]:
    """The smaller and the larger of two numbers whose product is ``size``: as near to each other as they can be, or the first as near
    below ``factor`` as it can be; as in LyCORIS, a factor that divides comes first even where it is the larger."""
    if factor is not None and size % factor == 0:
        return factor, size // factor
    most = size if factor is None else factor
    small = max(each for each in range(1, int(size**0.5) + 1) if size % each == 0 and each <= most)
    return small, size // small


class Lokr(LinearAdapter[LokrConfig]):
    """Trains all of them."""

    def layer(self, base: nn.Module, place: Place) -> KroneckerLinear:
        """See ``LinearAdapter``."""
        config = self.config
        return KroneckerLinear(
            base,
            factor=config.factor,
            decompose_both=config.decompose_both,
            **config.arguments(place.name),
        )

    def peft_form(self, model: TrainModel) -> PeftForm:
        """LOKR, whose scale is alpha / rank."""
        config = self.config
        return form_of_type(
            "LOKR",
            model,
            {name: name for which in ("lokr_w1", "lokr_w2") for name in (which, f"{which}_a", f"{which}_b")},
            training=("rank_dropout_scale",),
            decompose_both=config.decompose_both,
            decompose_factor=config.factor or -1,
            **rank_keys(config, model, alpha_key="alpha", alpha_of=config.plain_alpha_of),
        )
