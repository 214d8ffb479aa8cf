"""Samplers."""

from __future__ import annotations

from mt_core import ANY, Component

from ..samplers.own import OwnConfig, OwnSampler, build_copy, own_limits

SAMPLERS: tuple[Component, ...] = (
    Component(
        name="own",
        config=OwnConfig,
        build=OwnSampler,
        limits=own_limits,
        summary="generates in the trainer, with the trained weights or a copy of them; the default",
        layouts=ANY,
    ),
    Component(
        name="copy",
        build=build_copy,
        summary="generates in the trainer, always with a whole copy of the model on each rank, which pipelines need",
        layouts=ANY,
    ),
)
