"""Says what the plugin offers; holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import QwenConfig
from .huggingface import ARCHITECTURES, HUGGINGFACE
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

SOURCE = "https://arxiv.org/abs/2412.15115, https://arxiv.org/abs/2505.09388"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="qwen",
            config=QwenConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="3-tiny",
            architectures=tuple(each.name for each in ARCHITECTURES),
            formats=(HUGGINGFACE,),
            summary="Qwen 2.5 and 3, dense and mixtures of experts",
            source=SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="qwen",
            config=QwenConfig,
            build=_build,
            summary="trainable Qwen 2.5 and 3, every layout",
            source=SOURCE,
            layouts=ZERO | {"sequence", "pipeline", "expert"},
        )
    ]


def _build(config: QwenConfig) -> TrainModel:
    from .model import Qwen  # torch loads here, when a run has chosen this model

    return Qwen(config)


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="qwen-gsm8k-grpo",
            summary="Qwen 2.5 1.5B learns grade-school sums from whether its answer is right; on a GPU of 24 GB",
        ),
    ]
