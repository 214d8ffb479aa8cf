"""Entry point of the callbacks plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .stopping import Best, BestConfig, EarlyStopping, EarlyStoppingConfig


@hookimpl
def mt_callbacks() -> list[Component]:
    return [
        Component(
            name="early-stopping",
            config=EarlyStoppingConfig,
            build=EarlyStopping,
            summary="ends the run when a figure has not become better for some time",
            source="https://doi.org/10.1007/978-3-642-35289-8_5",
            layouts=ANY,
        ),
        Component(
            name="best",
            config=BestConfig,
            build=Best,
            summary="saves whenever checkpoint.best improves, and ends the run with that checkpoint",
            source="https://doi.org/10.1007/978-3-642-35289-8_5",
            layouts=ANY,
        ),
    ]
