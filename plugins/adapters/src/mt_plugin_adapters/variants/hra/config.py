"""Options of HRA."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class HraConfig(TargetConfig):
    """See ``TargetConfig``."""

    rank: int = Field(8, gt=0, le=65_536, multiple_of=2, description="reflections of a projection's inputs, in pairs")
    fp32: bool = Field(False, description="reflect the inputs in fp32, whatever the precision of the run")
