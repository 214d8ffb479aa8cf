"""Rules for whole matrices where ZeRO shows flat pieces: as gradient transforms, and the optimizer that follows their directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .rule import Group, RuleOptimizer, State, adam_direction, decay_weight, start_moments


class AdamW(RuleOptimizer):
    """AdamW as torch has it (https://arxiv.org/abs/1711.05101)."""

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        start_moments(state, weight)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        decay_weight(weight, group)
        weight.sub_(adam_direction(state, gradient, group), alpha=group["lr"])


class Follower(RuleOptimizer):
    """Plain descent along the directions of transformed groups; ``rest`` is the rule of the others."""

    def __init__(self, rest: RuleOptimizer) -> None:
        super().__init__(rest.param_groups, rest.defaults)
        self._rest = rest

    def start(self, weight: Tensor, state: State, group: Group) -> None:
        if not group["transformed"]:
            self._rest.start(weight, state, group)

    def update(self, weight: Tensor, gradient: Tensor, state: State, group: Group) -> None:
        act = self._rest.follow if group["transformed"] else self._rest.update
        act(weight, gradient, state, group)


class RuleTransform:
    """Implements ``mt_core.GradientTransform`` by the ``direction`` of a rule."""

    def __init__(self, rule: RuleOptimizer, options: Group) -> None:
        self.optimizer: torch.optim.Optimizer = Follower(rule)
        self._rule = rule
        self._group = {**options, "transformed": True}

    def transform(self, name: str, gradient: Tensor, state: State) -> Tensor:
        """See ``mt_core.GradientTransform``."""
        group = {**self._group, "name": name}
        self._rule.count(gradient, state, group)
        return self._rule.direction(gradient, state, group)


class LibraryTransform:
    """Implements ``mt_core.GradientTransform``: how far a library's rule moves a weight of zeros, at a rate of 1 and without decay.

    ``rule`` must not look at weights; its parameters are replaced by a stand-in for each gradient.
    """

    def __init__(self, rule: torch.optim.Optimizer, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._rule = rule

    def transform(self, name: str, gradient: Tensor, state: State) -> Tensor:
        """See ``mt_core.GradientTransform``."""
        stand_in = nn.Parameter(torch.zeros_like(gradient))
        stand_in.grad = gradient
        self._rule.param_groups[0]["params"] = [stand_in]
        self._rule.state = {stand_in: state}  # type: ignore[assignment]
        self._rule.step()
        return stand_in.detach().neg_()


def stand_in_group() -> list[dict[str, Any]]:
    """Return what a rule is made over before there is a gradient."""
    return [{"params": [nn.Parameter(torch.zeros(1, 1))]}]
