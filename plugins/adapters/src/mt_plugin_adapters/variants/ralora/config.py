"""Options of RaLoRA."""

from __future__ import annotations

from pydantic import Field

from ...probed_config import ProbedConfig


class RaloraConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    max_blocks: int = Field(
        32, gt=0, le=65_536, description="most blocks that a layer is cut into; powers of two count"
    )
