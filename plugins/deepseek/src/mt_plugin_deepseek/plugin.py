"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import DeepseekConfig
from .huggingface import HUGGINGFACE, SECOND, THIRD
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2405.04434, https://arxiv.org/abs/2412.19437"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="deepseek",
            config=DeepseekConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=(SECOND.name, THIRD.name),
            formats=(HUGGINGFACE,),
            summary="DeepSeek V2 and V3",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="deepseek",
            config=DeepseekConfig,
            build=_build,
            summary="trainable DeepSeek V2 and V3, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline", "expert"},
        )
    ]


def _build(config: DeepseekConfig) -> TrainModel:
    from .model import Deepseek  # torch loads here, when a run has chosen this model

    return Deepseek(config)
