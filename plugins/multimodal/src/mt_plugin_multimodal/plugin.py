"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from mt_core import hookimpl
from mt_core.media import EncoderComponent, ProjectorComponent

from .encoders import vit
from .projectors import average, merger, mlp, pixel_shuffle


@hookimpl
def mt_encoders() -> list[EncoderComponent]:
    return [*vit.COMPONENTS]


@hookimpl
def mt_projectors() -> list[ProjectorComponent]:
    return [*mlp.COMPONENTS, pixel_shuffle.COMPONENT, average.COMPONENT, merger.COMPONENT]
