"""Options of EVA."""

from __future__ import annotations

from pydantic import Field

from ...probed_config import ProbedConfig


class EvaConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    rho: float = Field(
        2.0, ge=1, description="most that a layer's rank may become, as a multiple of its own; 1 moves none"
    )
