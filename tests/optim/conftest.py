"""Optimizers and schedules as a run would get them."""

from __future__ import annotations

from typing import Any

import pytest

from mt_plugin_optim import plugin


@pytest.fixture(scope="session")
def build() -> Any:
    """``build(name, config values, **arguments)``: what a run would get."""
    offered = {each.name: each for each in [*plugin.mt_optimizers(), *plugin.mt_schedules()]}

    def make(name: str, values: dict[str, Any] | None = None, *positional: Any, **named: Any) -> Any:
        component = offered[name]
        return component.build(component.config(**(values or {})), *positional, **named)

    return make
