"""A plugin of the kit's own, with a tiny model and a quantizer: what an optimizer, a dataset, a callback or an adapter is tried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_conformance.tiny_config import TinyConfig
from mt_core import ANY, Component, ModelFamily, MtConfig, hookimpl

if TYPE_CHECKING:
    from mt_core.model_protocols import Quantizer
    from mt_core.nn import TrainModel

NAME = "kit-tiny"
EIGHT_BITS = "kit-eight-bits"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    sizes = {"tiny": {"vocab_size": 272, "max_seq_len": 256}}
    summary = "the kit's own model: attention and a gated MLP, two blocks of 16 channels"
    return [ModelFamily(name=NAME, config=TinyConfig, summary=summary, variants=sizes, default_variant="tiny")]


@hookimpl
def mt_train_models() -> list[Component]:
    return [Component(name=NAME, config=TinyConfig, build=_build, summary="trainable on every layout", layouts=ANY)]


@hookimpl
def mt_quantizers() -> list[Component]:
    return [Component(name=EIGHT_BITS, build=_eight_bits, summary="a byte a weight", conflicts=("adapter:full",))]


def _build(config: TinyConfig) -> TrainModel:
    from mt_conformance.tiny_model import TinyModel

    return TinyModel(config)


def _eight_bits(config: MtConfig) -> Quantizer:
    from mt_conformance.eight_bits import EightBits

    return EightBits()
