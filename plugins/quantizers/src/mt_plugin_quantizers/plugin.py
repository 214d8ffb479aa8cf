"""Entry point of the quantizers plugin."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal

from mt_core import ZERO, Component, Layout, hookimpl

from .config import FourBitConfig, QuantizerConfig

if TYPE_CHECKING:
    from types import ModuleType

    from mt_core import Quantizer

_TESTED: frozenset[Layout] = ZERO | {"sequence"}


@hookimpl
def mt_quantizers() -> list[Component]:
    return [
        Component(
            name="nf4",
            config=FourBitConfig,
            build=partial(_build_four_bit, kind="nf4"),
            summary="four bits a weight, spaced for normally distributed ones (QLoRA)",
            source="https://arxiv.org/abs/2305.14314",
            layouts=_TESTED,
            conflicts=("adapter:full",),
        ),
        Component(
            name="fp4",
            config=FourBitConfig,
            build=partial(_build_four_bit, kind="fp4"),
            summary="four bits a weight, as small floating-point numbers",
            source="https://arxiv.org/abs/2305.14314",
            layouts=_TESTED,
            conflicts=("adapter:full",),
        ),
        Component(
            name="int8",
            config=QuantizerConfig,
            build=_build_int8,
            summary="eight bits a weight, a scale for each row",
            source="https://arxiv.org/abs/2208.07339",
            layouts=_TESTED,
            conflicts=("adapter:full",),
        ),
    ]


def _build_four_bit(config: FourBitConfig, *, kind: Literal["nf4", "fp4"]) -> Quantizer:
    return _layers().four_bit(config, kind)  # type: ignore[no-any-return]


def _build_int8(config: QuantizerConfig) -> Quantizer:
    return _layers().int8(config)  # type: ignore[no-any-return]


def _layers() -> ModuleType:
    """Import the layers without bitsandbytes' advice on a product for CPUs that is not used here."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    from . import layers

    return layers


@hookimpl
def mt_recipes() -> list[Component]:
    return [
        Component(
            name="qlora", summary="a low-rank pair over weights of four bits, on answers; of 8B on a GPU of 16 GB"
        ),
    ]
