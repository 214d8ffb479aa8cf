"""Options of DeLoRA."""

from __future__ import annotations

from pydantic import Field

from mt_plugin_adapters.rank_config import RanksConfig


class DeloraConfig(RanksConfig):
    """See ``RanksConfig``."""

    strength: float = Field(15.0, gt=0, description="first λ: how long an update may be, in lengths of the weight")
