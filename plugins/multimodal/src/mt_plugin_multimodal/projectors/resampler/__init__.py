"""Perceiver resampler: a fixed number of latents that look at the features of an item (https://arxiv.org/abs/2405.02246)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from ..counts import require_features

if TYPE_CHECKING:
    from mt_core.nn import Projector


class ResamplerConfig(MtConfig):
    """Sizes of the resampler; the defaults are Idefics2's."""

    queries: int = Field(64, ge=1, le=65_536, description="hidden states of an item")
    depth: int = Field(3, ge=1, le=64, description="layers")
    n_heads: int = Field(16, ge=1, le=1024, description="query heads")
    n_kv_heads: int = Field(4, ge=1, le=1024, description="key/value heads")
    head_dim: int = Field(96, ge=1, le=4096, description="channels of a head")
    ffn_dim: int | None = Field(
        None, ge=1, le=1_000_000, description="channels inside the gated projection in front; 4 x the width without"
    )
    norm_eps: float = Field(1e-6, gt=0, le=1, description="added to mean squares in norms")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; set n_kv_heads to a divisor, or to"
                f" {self.n_heads} for plain multi-head attention"
            )
        return self


def count_tokens(config: ResamplerConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item: ``queries``, whatever it is. Raises ``DataError`` for an item without features."""
    return require_features("resampler", features, config.queries)


def build(config: ResamplerConfig, source: int, target: int) -> Projector:
    """Return the resampler from features of ``source`` to hidden states of ``target`` channels."""
    from .module import Resampler

    return Resampler(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="resampler",
    config=ResamplerConfig,
    build=build,
    tokens=count_tokens,
    summary="a fixed number of hidden states of an item: latents that attend to its features (Idefics2)",
    source="https://arxiv.org/abs/2405.02246",
)
