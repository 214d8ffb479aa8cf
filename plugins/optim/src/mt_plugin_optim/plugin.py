"""Entry point of the optim plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import Component, OptimizerComponent, hookimpl

from .optimizers import OPTIMIZERS
from .schedules import (
    DecayConfig,
    ExponentialConfig,
    InverseSqrtConfig,
    PolynomialConfig,
    ReLoraConfig,
    RestartsConfig,
    WsdConfig,
    build_exponential,
    build_inverse_sqrt,
    build_linear,
    build_polynomial,
    build_relora,
    build_restarts,
    build_wsd,
)


@hookimpl
def mt_optimizers() -> list[OptimizerComponent]:
    return list(OPTIMIZERS)


@hookimpl
def mt_schedules() -> list[Component]:
    return [
        Component(name="linear", config=DecayConfig, build=build_linear, summary="linear decay to a floor"),
        Component(
            name="polynomial",
            config=PolynomialConfig,
            build=build_polynomial,
            summary="a power of the remaining share of the run, down to a floor",
        ),
        Component(
            name="exponential",
            config=ExponentialConfig,
            build=build_exponential,
            summary="exponential decay: every update multiplies the rate by the same factor",
        ),
        Component(
            name="inverse-sqrt",
            config=InverseSqrtConfig,
            build=build_inverse_sqrt,
            summary="inverse square root of the number of updates, without an end",
            source="https://arxiv.org/abs/1706.03762",
        ),
        Component(
            name="wsd",
            config=WsdConfig,
            build=build_wsd,
            summary="warm-up, stable, decay: constant until the last part of the run",
            source="https://arxiv.org/abs/2404.06395",
        ),
        Component(
            name="cosine-restarts",
            config=RestartsConfig,
            build=build_restarts,
            summary="cosine decay with restarts",
            source="https://arxiv.org/abs/1608.03983",
        ),
        Component(
            name="relora",
            config=ReLoraConfig,
            build=build_relora,
            summary="one cosine, with a short warm-up after each reset of an adapter",
            source="https://arxiv.org/abs/2307.05695",
        ),
    ]
