"""Options of LoRA-SB."""

from __future__ import annotations

from pydantic import Field

from ...probed_config import ProbedConfig


class LoraSbConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    step: float = Field(
        5e-5,
        gt=0,
        description="η, the learning rate of the step of full training that the update begins as (per update)",
    )
