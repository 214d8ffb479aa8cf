"""Options of VeRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class VeraConfig(TargetConfig):
    """See ``TargetConfig``."""

    rank: int = Field(256, gt=0, le=65_536, description="rows of A: the paper's are far larger than those of LoRA")
    d_initial: float = Field(0.1, gt=0, description="first value of the vector between A and B")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the adapter's inputs set to 0 in training")
    fp32: bool = Field(False, description="compute the adapter's part in fp32, whatever the precision of the run")
    projection_seed: int | None = Field(
        None,
        ge=0,
        description="draw the random matrices from this seed as peft does (its projection_prng_key); none: from the run's seed",
    )
