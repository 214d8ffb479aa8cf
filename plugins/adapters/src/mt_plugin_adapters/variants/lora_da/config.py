"""Options of LoRA-DA."""

from __future__ import annotations

from pydantic import Field

from ...probed_config import ProbedConfig


class LoraDaConfig(ProbedConfig):
    """See ``ProbedConfig``."""

    gamma: float = Field(1024.0, gt=0, description="A and B begin divided by sqrt(gamma); more is shorter")
    variance: float = Field(
        1.0, ge=0, description="weight of the uncertainty (the authors' β); 0 looks at the step alone"
    )
    tokens: int = Field(
        1_000_000, gt=0, description="trained tokens of the run, which say how uncertain it is (the paper's N)"
    )
    damping: float = Field(
        1e-3, gt=0, description="added to the diagonals of the Fisher factors, as a share of their means"
    )
