"""Options of RandLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class RandLoraConfig(TargetConfig):
    """See ``TargetConfig``."""

    rank: int = Field(
        32,
        gt=0,
        le=65_536,
        description="rank of each random product; a smaller rank means more products, and more parameters",
    )
    alpha: float = Field(640.0, gt=0, description="the update is multiplied by alpha / rank; the paper has 20 x rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapter's inputs set to 0 in training")
    fp32: bool = Field(False, description="compute the adapter's part in fp32, whatever the precision of the run")
    projection_seed: int | None = Field(
        None,
        ge=0,
        description="draw the random matrices from this seed as peft does (its projection_prng_key); none: from the run's seed",
    )
