"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import OlmoConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2501.00656, https://arxiv.org/abs/2512.13961"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="olmo",
            config=OlmoConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="3-tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="OLMo 2 and 3",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="olmo",
            config=OlmoConfig,
            build=_build,
            summary="trainable OLMo 2 and 3, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


def _build(config: OlmoConfig) -> TrainModel:
    from .model import Olmo  # torch loads here, when a run has chosen this model

    return Olmo(config)
