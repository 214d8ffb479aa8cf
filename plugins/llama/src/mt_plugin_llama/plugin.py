"""Entry point of the llama plugin: says what it offers, holds no logic, imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import ZERO, Component, ModelFamily, hookimpl

from .config import LlamaConfig
from .huggingface import HUGGINGFACE, LLAMA
from .meta import META
from .tokenizer import Llama3TokenizerConfig, build_llama3_tokenizer
from .variants import VARIANT_DEFAULTS, VARIANTS

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

_SOURCE = "https://arxiv.org/abs/2407.21783"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="llama",
            config=LlamaConfig,
            variants=VARIANTS,
            variant_defaults=VARIANT_DEFAULTS,
            default_variant="tiny",
            architectures=(LLAMA.name,),
            formats=(HUGGINGFACE, META),
            summary="Llama 1, 2 and 3.x",
            source=_SOURCE,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="llama",
            config=LlamaConfig,
            build=_build,
            summary="trainable Llama, every ZeRO stage, sequence parallel and pipeline",
            source=_SOURCE,
            layouts=ZERO | {"sequence", "pipeline"},
        )
    ]


@hookimpl
def mt_tokenizers() -> list[Component]:
    return [
        Component(
            name="llama3",
            config=Llama3TokenizerConfig,
            build=build_llama3_tokenizer,
            summary="Llama 3's own tokenizer.model, a file of tiktoken ranks",
            source="https://github.com/meta-llama/llama-models/blob/main/models/llama3/tokenizer.py",
        )
    ]


def _build(config: LlamaConfig) -> TrainModel:
    from .model import Llama  # torch loads here, when a run has chosen this model

    return Llama(config)


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="llama-1b-alpaca-lora", summary="Llama 3.2 1B follows the instructions of Alpaca; on a GPU of 16 GB"
        ),
        Component(
            name="llama-8b-alpaca-qlora",
            summary="Llama 3.1 8B in four bits follows the instructions of Alpaca; on a GPU of 16 GB",
        ),
        Component(name="llama-8b-full", summary="all weights of Llama 3.1 8B on answers; on eight GPUs of 80 GB"),
        Component(
            name="llama-1b-ultrafeedback-dpo",
            summary="preferences of UltraFeedback for Llama 3.2 1B Instruct; on a GPU of 8 GB",
        ),
    ]
