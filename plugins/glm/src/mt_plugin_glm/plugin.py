"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import GlmConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2406.12793"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="glm",
            config=GlmConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="4-tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="GLM-4 (0414)",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="glm",
            config=GlmConfig,
            build=_build,
            summary="trainable GLM-4 (0414), every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


def _build(config: GlmConfig) -> TrainModel:
    from .model import Glm  # torch loads here, when a run has chosen this model

    return Glm(config)
