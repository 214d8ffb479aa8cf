"""Steps of an optimizer without an engine: one over the directions of a transform, and gradients to go down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from mt_core.protocols import GradientTransform

NAME = "conformance_name"
"""Attribute of a parameter: the name by which an engine hands its gradient to a transform."""


def named_parameter(name: str, value: Tensor) -> nn.Parameter:
    """Make a parameter that knows its name, which some transforms go by."""
    parameter = nn.Parameter(value)
    setattr(parameter, NAME, name)
    return parameter


class TransformOptimizer(torch.optim.Optimizer):
    """The optimizer of a ``GradientTransform``, with its directions in the place of gradients, as an engine alone uses it."""

    def __init__(self, transform: GradientTransform) -> None:
        self._transform, self._inner = transform, transform.optimizer
        super().__init__(self._inner.param_groups, {})
        self.param_groups = self._inner.param_groups
        self.state = self._states = _States(self._inner)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Directions, then the step of the optimizer below."""
        parameters = [(group, each) for group in self.param_groups for each in group["params"]]
        for number, (group, parameter) in enumerate(parameters):
            if group.get("transformed") and parameter.grad is not None:
                own = self._states.own.setdefault(parameter, {})
                name = getattr(parameter, NAME, f"parameter.{number}")
                parameter.grad = self._transform.transform(name, parameter.grad, own)
        self._inner.step()


class _States(defaultdict[Tensor, dict[str, Any]]):
    """The state of both by parameter: that of the transform has a prefix."""

    PREFIX = "transform."

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(dict)
        self.inner, self.own = inner, cast("dict[Tensor, dict[str, Any]]", {})

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        """Return what both keep."""
        own = {f"{self.PREFIX}{key}": value for key, value in self.own.get(parameter, {}).items()}
        return {**self.inner.state.get(parameter, {}), **own} or default

    def __setitem__(self, parameter: Tensor, values: dict[str, Any]) -> None:
        self.own[parameter] = {
            key.removeprefix(self.PREFIX): value for key, value in values.items() if key.startswith(self.PREFIX)
        }
        if rest := {key: value for key, value in values.items() if not key.startswith(self.PREFIX)}:
            self.inner.state[parameter] = rest


def take_steps(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], rates: Sequence[float], first: int = 0
) -> None:
    """One step a rate down the sum of squares of the parameters, with a ripple of its own on each number in each step.

    Without the ripple gradients are multiples of the weights, and a rule that takes one for the other would not show.
    """
    for step, rate in enumerate(rates, start=first):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter in parameters:
            value = parameter.detach()
            parameter.grad = 2 * value + 0.5 * torch.sin(37 * value + step)
        optimizer.step()
