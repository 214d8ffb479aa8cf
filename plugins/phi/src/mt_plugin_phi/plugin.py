"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import PhiConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2404.14219, https://arxiv.org/abs/2412.08905"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="phi",
            config=PhiConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="Phi-3 and 4",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="phi",
            config=PhiConfig,
            build=_build,
            summary="trainable Phi-3 and 4, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


def _build(config: PhiConfig) -> TrainModel:
    from .model import Phi  # torch loads here, when a run has chosen this model

    return Phi(config)
