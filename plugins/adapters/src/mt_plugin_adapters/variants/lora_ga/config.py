"""Options of LoRA-GA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...probed_config import ProbedConfig


class LoraGaConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    gamma: float = Field(16.0, gt=0, description="A and B begin outputs^(1/4) / sqrt(gamma) long; more is shorter")
    form: Literal["paper", "peft"] = Field("paper", description="lengths as in the paper, or as peft 0.21 has them")
