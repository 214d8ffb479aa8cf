"""Options of (IA)³."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mt_core import Patterns, TargetConfig


class Ia3Config(TargetConfig):
    """The paper's targets, under the names of most families."""

    targets: Literal["all-linear"] | Patterns | None = Field(
        ("k_proj", "v_proj", "down_proj"),
        description="projections: names or patterns (* and ?) of whole names; all-linear is all but the head; none is the"
        " family's own list",
    )
    feedforward: Patterns | None = Field(
        None,
        description="names or patterns of targets whose input has the gains; none is down_proj, where it is a target",
    )
