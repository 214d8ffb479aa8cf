"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import GptOssConfig
from .huggingface import GPT_OSS, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2508.10925"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="gpt-oss",
            config=GptOssConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=(GPT_OSS.name,),
            formats=(HUGGINGFACE,),
            summary="gpt-oss: mixture of experts with attention sinks",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="gpt-oss",
            config=GptOssConfig,
            build=_build,
            summary="trainable gpt-oss, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline", "expert"},
        )
    ]


def _build(config: GptOssConfig) -> TrainModel:
    from .model import GptOss  # torch loads here, when a run has chosen this model

    return GptOss(config)
