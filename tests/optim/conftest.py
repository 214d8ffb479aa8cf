"""Optimizers and schedules as a run would get them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mt_core import GradientTransform
from mt_plugin_optim import plugin


class UnshardedTransform:
    """A gradient transform and its optimizer without an engine; ``names`` are the parameters' places, or those of blocks."""

    def __init__(self, made: GradientTransform, initial: dict[str, Any], name: str) -> None:
        self._made, self._name = made, name
        self.param_groups = made.optimizer.param_groups
        owned = [each for group in self.param_groups if group["transformed"] for each in group["params"]]
        self.state = {each: {key: value(place) for key, value in initial.items()} for place, each in enumerate(owned)}

    @torch.no_grad()
    def step(self) -> None:
        for place, (weight, state) in enumerate(self.state.items()):
            weight.grad = self._made.transform(self._name.format(place), weight.grad, state)
        self._made.optimizer.step()


@pytest.fixture(scope="session")
def build() -> Any:
    """``build(name, config values, **arguments)``: what a run would get.

    A transform's tensors may start as ``initial``, and have names of the form ``parameter``.
    """
    offered = {each.name: each for each in [*plugin.mt_optimizers(), *plugin.mt_schedules()]}

    def make(
        name: str,
        values: dict[str, Any] | None = None,
        *positional: Any,
        initial: Any = None,
        parameter: str = "{}",
        **named: Any,
    ) -> Any:
        component = offered[name]
        made = component.build(component.config(**(values or {})), *positional, **named)
        return UnshardedTransform(made, initial or {}, parameter) if isinstance(made, GradientTransform) else made

    return make
