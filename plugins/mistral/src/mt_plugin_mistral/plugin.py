"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import MistralConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2310.06825, https://arxiv.org/abs/2401.04088"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="mistral",
            config=MistralConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="Mistral, Ministral and Mixtral",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="mistral",
            config=MistralConfig,
            build=_build,
            summary="trainable Mistral, Ministral and Mixtral, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline", "expert"},
        )
    ]


def _build(config: MistralConfig) -> TrainModel:
    from .model import Mistral  # torch loads here, when a run has chosen this model

    return Mistral(config)
