"""Samplers."""

from __future__ import annotations

from mt_core import ANY, Component

from ..samplers.own import OwnConfig, OwnSampler, build_copy

SAMPLERS: tuple[Component, ...] = (
    Component(
        name="own",
        config=OwnConfig,
        build=OwnSampler,
        summary="the model writes in the trainer, with the weights that are trained or a copy; what a run takes that names none",
        layouts=ANY,
    ),
    Component(
        name="copy",
        build=build_copy,
        summary="the model writes in the trainer, always with a whole copy on each rank, as pipelines need it",
        layouts=ANY,
    ),
)
