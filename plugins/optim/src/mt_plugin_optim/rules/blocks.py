"""Some blocks at a time: BAdam (https://arxiv.org/abs/2404.02827) and LISA (https://arxiv.org/abs/2403.17919).

Parameter groups are blocks. Those whose turn it is not keep their weights, and no moments: that saves the optimizer's state. Gradients
are computed for all of them, and the norm that ``train.clip_norm`` bounds is that of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .rule import Group, RuleOptimizer, State, adam_direction, decay_weight, start_moments


class _SomeBlocks(RuleOptimizer):
    """AdamW for the blocks of this period; moments start anew when a block's turn comes."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        blocks = sorted({group["block"] for group in self.param_groups if group["block"] is not None})
        for group in self.param_groups:
            group["blocks"] = blocks
        return super().step(closure)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        step, every = int(state["step"]) - 1, group["switch_steps"]
        if not self.is_on(step // every, group):
            for key in [key for key in state if key != "step"]:
                del state[key]
            return
        if "exp_avg" not in state:
            start_moments(state, weight)
            state["updates"] = torch.zeros(1)
        state["updates"] += 1
        decay_weight(weight, group)
        weight.sub_(adam_direction({**state, "step": state["updates"]}, gradient, group), alpha=group["lr"])

    def is_on(self, period: int, group: Group) -> bool:
        """Return whether a group is trained in this period."""
        raise NotImplementedError


class BAdam(_SomeBlocks):
    """One block after the other, from the last to the first; what is in no block is a block of its own."""

    def is_on(self, period: int, group: Group) -> bool:
        turns: list[Any] = [None, *group["blocks"]][::-1]
        return bool(turns[period % len(turns)] == group["block"])


class Lisa(_SomeBlocks):
    """Some blocks drawn at random for each period; what is in no block (embedding, norm, head) is always trained."""

    def is_on(self, period: int, group: Group) -> bool:
        if group["block"] is None:
            return True
        draw = random.Random(
            f"{group['seed']} {period}"
        )  # a function of seed and period, on every rank and after a resume
        return group["block"] in draw.sample(group["blocks"], min(group["active"], len(group["blocks"])))
