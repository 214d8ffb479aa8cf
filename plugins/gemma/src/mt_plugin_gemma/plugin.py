"""Entry point of the gemma plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import GemmaConfig
from .google import GOOGLE
from .huggingface import HUGGINGFACE
from .names import ARCHITECTURES, MULTIMODAL
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

_SOURCE = "https://arxiv.org/abs/2503.19786"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="gemma",
            config=GemmaConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="3-tiny",
            architectures=(*ARCHITECTURES.values(), MULTIMODAL),
            formats=(HUGGINGFACE, GOOGLE),
            summary="Gemma 1, 2 and 3, text only",
            source=_SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="gemma",
            config=GemmaConfig,
            build=_build,
            summary="trainable Gemma, every ZeRO stage, sequence parallel and pipeline",
            source=_SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


def _build(config: GemmaConfig) -> TrainModel:
    from .model import Gemma  # torch loads here, when a run has chosen this model

    return Gemma(config)


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(name="gemma-1b-chat-lora", summary="Gemma 3 1B on conversations of your own; on a GPU of 8 GB"),
    ]
