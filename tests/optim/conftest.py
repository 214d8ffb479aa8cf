"""Optimizers and schedules as a run would get them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
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


def _engine_fixtures() -> Any:
    file = Path(__file__).parents[1] / "core" / "engine" / "conftest.py"
    spec = spec_from_file_location("engine_fixtures", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_ENGINE = _engine_fixtures()
rows, launch = _ENGINE.rows, _ENGINE.launch  # launches of several processes, as the engine's own tests have them
