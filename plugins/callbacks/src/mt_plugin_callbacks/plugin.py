"""Entry point of the callbacks plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import ANY, Component, hookimpl

from .averaging import EmaConfig, SwaConfig, build_ema, build_swa
from .neftune import Neftune, NeftuneConfig
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
        Component(
            name="ema",
            config=EmaConfig,
            build=build_ema,
            summary="exponential average of the weights, to evaluate and generate with",
            source="https://doi.org/10.1137/0330046",
        ),
        Component(
            name="swa",
            config=SwaConfig,
            build=build_swa,
            summary="plain average of the weights over the last part of the run",
            source="https://arxiv.org/abs/1803.05407",
        ),
        Component(
            name="neftune",
            config=NeftuneConfig,
            build=Neftune,
            summary="noise on the embeddings while training",
            source="https://arxiv.org/abs/2310.05914",
        ),
    ]
