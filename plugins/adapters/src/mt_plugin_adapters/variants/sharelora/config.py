"""Options of ShareLoRA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import LowRankConfig


class ShareLoraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    share: Literal["A", "B", "AB"] = Field("A", description="which of the two matrices all blocks have together")
