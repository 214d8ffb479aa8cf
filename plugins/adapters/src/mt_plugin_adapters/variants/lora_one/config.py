"""Options of LoRA-One."""

from __future__ import annotations

from pydantic import Field

from ...probed_config import ProbedConfig


class LoraOneConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    gamma: float = Field(128.0, gt=0, description="the update begins as scale / gamma of the gradient; more is shorter")
