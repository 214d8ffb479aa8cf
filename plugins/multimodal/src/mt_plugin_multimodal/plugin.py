"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import Component, hookimpl
from mt_core.media import EncoderComponent, ProjectorComponent

from .encoders import hf, qwen, vit, whisper
from .projectors import average, merger, mlp, pixel_shuffle, pooling, qformer, resampler


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    return [*hf.COMPONENTS, *vit.COMPONENTS, *qwen.COMPONENTS, whisper.COMPONENT]


@hookimpl
def mt_projectors() -> list[ProjectorComponent]:
    others = (pixel_shuffle, average, merger, pooling, qformer, resampler)
    return [*mlp.COMPONENTS, *(each.COMPONENT for each in others)]


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="images", summary="a language model that reads pictures, over a frozen SigLIP; of 1B on a GPU of 12 GB"
        ),
    ]
