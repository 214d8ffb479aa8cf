"""Options of PiSSA."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class PissaConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    iterations: int | None = Field(
        None,
        gt=0,
        le=1000,
        description="subspace iterations of a fast, approximate decomposition, such as 16; none is the exact one, slow for wide models",
    )
