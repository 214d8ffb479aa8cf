"""Entry point of the plugin: its hooks. Every command imports it, so it imports no torch.

The host imports this module in every command, also in ``mt-plugins list``: it has to stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mt_core import Component, ModelFamily, hookimpl

from .config import VARIANT_DEFAULTS, VARIANTS, GatedConvConfig

if TYPE_CHECKING:
    from mt_core.nn import TrainModel

_PAPER = "https://arxiv.org/abs/1612.08083"


@hookimpl
def mt_model_configs() -> list[ModelFamily]:
    return [
        ModelFamily(
            name="gated-conv",
            config=GatedConvConfig,
            variants=VARIANTS,
            default_variant="tiny",
            variant_defaults=VARIANT_DEFAULTS,
            summary="gated convolutional language model, without attention",
            source=_PAPER,
        )
    ]


@hookimpl
def mt_train_models() -> list[Component]:
    return [
        Component(
            name="gated-conv",
            config=GatedConvConfig,
            build=_build,
            summary="trainable gated convolutions on ZeRO 0 to 3",
            source=_PAPER,
        )
    ]


def _build(config: GatedConvConfig) -> TrainModel:
    from .model import GatedConv  # torch loads here, when a run has chosen this model

    return GatedConv(config)
