"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import SmolLMConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://huggingface.co/HuggingFaceTB/SmolLM3-3B"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="smollm",
            config=SmolLMConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="SmolLM3",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="smollm",
            config=SmolLMConfig,
            build=_build,
            summary="trainable SmolLM3, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


def _build(config: SmolLMConfig) -> TrainModel:
    from .model import SmolLM  # torch loads here, when a run has chosen this model

    return SmolLM(config)
