"""Options of BitFit."""

from __future__ import annotations

from pydantic import Field

from mt_core import TargetConfig


class BitFitConfig(TargetConfig):
    """The targets are those of ``add``; the biases that the model has are trained wherever they are."""

    add: bool = Field(False, description="add a bias to each target without one; it begins at 0")
