"""Options of MoSLoRA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import LowRankConfig


class MosloraConfig(LowRankConfig):
    """See ``LowRankConfig``."""

    mixer: Literal["uniform", "orthogonal"] = Field("uniform", description="how the square matrix begins")
