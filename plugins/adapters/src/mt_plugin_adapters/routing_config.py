"""Options of mixtures of experts. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig, MtConfig


class RoutingConfig(MtConfig):
    """Choice of the experts that a token takes."""

    top_k: int = Field(
        2,
        ge=2,
        le=65_536,
        description="experts of a token: those that its gate gives most (one alone has share 1: no gate would learn)",
    )
    balance: float = Field(
        0.01,
        ge=0,
        description="weight of the balance loss of each projection, beside the mean loss of a token; 0 is none",
    )


class MixtureConfig(LowRankConfig, RoutingConfig):
    """Pairs of a small rank as experts; ``rank`` is that of each."""

    rank: int = Field(4, gt=0, le=65_536, description="inner dimension of each expert's pair")
