"""Entry point of the huggingface plugin: says what it offers, holds no logic, imports neither torch nor transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import VARIANTS, HuggingFaceConfig, limits_of
from .environment import forbid_fetched_kernels
from .weights import HUGGINGFACE

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

_SOURCE = "https://huggingface.co/docs/transformers"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="huggingface",
            config=HuggingFaceConfig,
            variants=VARIANTS,
            default_variant="tiny",
            formats=(HUGGINGFACE,),
            fallback=True,
            limits=limits_of,
            summary="causal language models of transformers, by their own code",
            source=_SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="huggingface",
            config=HuggingFaceConfig,
            build=_build,
            summary="trainable models of transformers, every ZeRO stage, sequence parallel and pipeline",
            source=_SOURCE,
            layouts=ZERO | {"sequence", "pipeline", "expert"},
        )
    ]


def _build(config: HuggingFaceConfig) -> TrainModel:
    forbid_fetched_kernels()
    from .model import HuggingFaceModel  # torch and transformers load here, when a run has chosen this model

    return HuggingFaceModel(config)
