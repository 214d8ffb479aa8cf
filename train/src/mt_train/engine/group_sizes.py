"""Parameter groups for people: how large each is, and what it trains with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt_core import whole_shape


@dataclass(frozen=True)
class GroupSize:
    """A parameter group for people: tensors and numbers, base rate and weight decay."""

    name: str
    tensors: int
    numbers: int
    lr: float
    weight_decay: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.tensors:,} tensor{'s'[: self.tensors != 1]}, {self.numbers:,} numbers, rate {self.lr:g}, weight decay"
            f" {self.weight_decay:g}"
        )


def group_sizes(groups: Sequence[Mapping[str, Any]], lr: float = 0.0, weight_decay: float = 0.0) -> list[GroupSize]:
    """The groups for people; rate and decay are those of groups that have none of their own."""
    return [
        GroupSize(
            name=str(group.get("name", number)),
            tensors=len(group["params"]),
            numbers=sum(math.prod(whole_shape(parameter)) for parameter in group["params"]),
            lr=float(group.get("lr", lr)),
            weight_decay=float(group.get("weight_decay", weight_decay)),
        )
        for number, group in enumerate(groups)
    ]
