"""GaLore (https://arxiv.org/abs/2403.03507) whose projected moments have 8 bits: bitsandbytes' AdamW on projected gradients."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.optim import AdamW8bit
from torch import Tensor

from .directions import Follower, LibraryTransform, stand_in_group
from .low_rank import GaLore, is_projected, project
from .rule import Group, State

OWN = ("step", "state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2")
"""State that bitsandbytes keeps for a tensor."""


class EightBitGaLore:
    """Implements ``mt_core.GradientTransform``. What is not projected is Adam's, in 32 bits: embedding, head, vectors, small matrices."""

    def __init__(self, groups: list[Group], options: dict[str, Any]) -> None:
        self._options = {**options, "transformed": True}
        self._rule = GaLore(stand_in_group(), options)
        self.optimizer: torch.optim.Optimizer = Follower(GaLore(groups, options))
        betas = (options["beta1"], options["beta2"])
        inner = {"betas": betas, "eps": options["eps"], "min_8bit_size": options["min_8bit_size"]}
        self._inner = LibraryTransform(AdamW8bit(stand_in_group(), lr=1.0, weight_decay=0.0, **inner), self.optimizer)

    def transform(self, name: str, gradient: Tensor, state: State) -> Tensor:
        """See ``mt_core.GradientTransform``."""
        if not is_projected(gradient, self._options):
            self._rule.count(gradient, state, self._options)
            return self._rule.direction(gradient, state, self._options)
        if int(state.get("step", 0)) % self._options["update_steps"] == 0:
            state["projection"] = self._rule.projection(gradient, state, self._options)
        small = self._adam_direction(name, project(gradient, state["projection"]).contiguous(), state)
        whole = self._rule.expand(small, small, gradient, state, self._options)
        return whole.mul_(self._rule.factor(self._options))

    def _adam_direction(self, name: str, gradient: Tensor, state: State) -> Tensor:
        """bitsandbytes counts steps in an int, and takes whatever is in the state for its own."""
        own = {key: state[key] for key in OWN if key in state}
        if "step" in own:
            own["step"] = int(own["step"])
        direction = self._inner.transform(name, gradient, own)
        state.update(own, step=torch.tensor(float(own["step"]), dtype=torch.float64))
        return direction
