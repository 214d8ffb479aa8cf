"""Preference losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mt_core import ANY, Component, MtConfig

from ..losses.base import PreferenceLoss
from ..losses.sigmoid import Sigmoid, SigmoidConfig


def _loss(
    name: str, config: type[MtConfig], build: Callable[[Any], PreferenceLoss], summary: str, source: str
) -> Component:
    return Component(name=name, config=config, build=build, summary=summary, source=source, layouts=ANY)


LOSSES: tuple[Component, ...] = (
    _loss(
        "sigmoid",
        SigmoidConfig,
        Sigmoid,
        "DPO: logistic regression on the margin; with label_smoothing cDPO",
        "https://arxiv.org/abs/2305.18290",
    ),
)
