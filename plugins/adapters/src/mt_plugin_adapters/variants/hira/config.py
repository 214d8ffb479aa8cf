"""Options of HiRA."""

from __future__ import annotations

from pydantic import Field

from mt_plugin_adapters.rank_config import RankConfig


class HiraConfig(RankConfig):
    """See ``RankConfig``."""

    rank: int = Field(32, gt=0, le=65_536, description="inner dimension of the pair")
