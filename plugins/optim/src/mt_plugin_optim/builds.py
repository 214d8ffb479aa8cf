"""From options to an optimizer; torch and libraries load here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt_core import GroupOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    Build = Callable[[Any, list[dict[str, Any]]], Optimizer]

_POLICY = frozenset(GroupOptions.model_fields) - {"lr", "weight_decay"}
"""What divides the parameters into groups, and is no business of the optimizer."""


def options_of(config: GroupOptions) -> dict[str, Any]:
    """The config as arguments of an optimizer, or defaults of its groups."""
    return {name: value for name, value in config.model_dump().items() if name not in _POLICY}


def rule(module: str, name: str) -> Build:
    """Builds a ``RuleOptimizer`` of this plugin, which reads the config's fields from its groups."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> Optimizer:
        chosen = getattr(import_module(f"{__package__}.rules.{module}"), name)
        return chosen(groups, options_of(config))  # type: ignore[no-any-return]

    return build


def from_torch(name: str, **fixed: Any) -> Build:
    """Builds an optimizer of torch. Plain operations: each number is treated alike, however ZeRO cuts the weights."""

    def build(config: GroupOptions, groups: list[dict[str, Any]]) -> Optimizer:
        import torch

        options = options_of(config)
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        return getattr(torch.optim, name)(groups, **options, **fixed)  # type: ignore[no-any-return]

    return build
