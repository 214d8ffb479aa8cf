"""Options that several losses have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import MtConfig

Divergence = Literal["reverse-kl", "forward-kl", "js", "alpha"]


class BetaOptions(MtConfig):
    """How far the model may go from its reference."""

    beta: float = Field(0.1, gt=0, description="how strongly the model is held to its reference; higher is closer")


class DivergenceOptions(BetaOptions):
    """By which divergence it is held."""

    divergence: Divergence = Field("reverse-kl", description="divergence from the reference; reverse-kl is that of DPO")
    divergence_alpha: float = Field(0.5, ge=0, le=2, description="α of divergence alpha; 0 is forward-kl, 1 reverse-kl")
