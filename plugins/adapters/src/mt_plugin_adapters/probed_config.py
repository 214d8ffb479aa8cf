"""Options of adapters that look at rows before training. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import ANY, LowRankConfig

PROBED = ANY - {"zero3", "pipeline", "offload"}
"""Layouts on which every rank has the whole model while rows are looked at."""


class ProbedConfig(LowRankConfig):
    """A pair that begins as what rows of the run say; they are looked at before training begins."""

    probe_steps: int = Field(1, gt=0, description="optimizer steps whose rows are looked at before training begins")
    probe_gb: float = Field(
        4.0,
        gt=0,
        description="memory for what is looked at together on each rank (GB); one pass over the rows for each portion",
    )
