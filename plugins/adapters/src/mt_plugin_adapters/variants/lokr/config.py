"""Options of LoKr."""

from __future__ import annotations

from pydantic import Field

from mt_core import LowRankConfig


class LokrConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    factor: int | None = Field(
        None,
        gt=0,
        le=65_536,
        description="inputs and outputs are divided by this number, or by the largest one below that divides them;"
        " none is near their square roots",
    )
    decompose_both: bool = Field(
        False, description="make the smaller matrix a low-rank product too, where that is smaller"
    )
