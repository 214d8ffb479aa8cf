"""Options of the quantizers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import Patterns, TargetConfig


class QuantizerConfig(TargetConfig):
    """Choice of the linear layers that are stored in fewer bits. The head is never among them."""

    targets: Literal["all-linear"] | Patterns | None = Field(
        "all-linear", description="projections that are quantized: names or patterns; none is the family's own list"
    )


class FourBitConfig(QuantizerConfig):
    """Four bits a weight, and a scale for each block of them (https://arxiv.org/abs/2305.14314)."""

    block_size: Literal[64, 128, 256, 512] = Field(64, description="weights that share a scale")
    double: bool = Field(
        True, description="quantize the scales too, to 8 bits: 0.37 bits a weight less at blocks of 64"
    )
