"""One matrix, or several with GELU between: each feature becomes a hidden state. Torch is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mt_core import MtConfig
from mt_core.media import Grid, ProjectorComponent

from .huggingface import LLAVA

if TYPE_CHECKING:
    from mt_core.nn import Projector


class LinearConfig(MtConfig):
    """One matrix."""

    bias: bool = Field(True, description="with a bias")


class MlpConfig(LinearConfig):
    """Several matrices. LLaVA-1.5 has two (https://arxiv.org/abs/2310.03744)."""

    depth: int = Field(2, ge=1, le=16, description="matrices; between them is GELU")


def count_tokens(config: LinearConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item: one a feature."""
    return features


def _build_linear(config: LinearConfig, source: int, target: int) -> Projector:
    return _build_mlp(MlpConfig(bias=config.bias, depth=1), source, target)


def _build_mlp(config: MlpConfig, source: int, target: int) -> Projector:
    from .module import Mlp

    return Mlp(config, source=source, target=target)


COMPONENTS = (
    ProjectorComponent(
        name="linear",
        config=LinearConfig,
        build=_build_linear,
        tokens=count_tokens,
        summary="each feature through one matrix",
        source="https://arxiv.org/abs/2304.08485",
    ),
    ProjectorComponent(
        name="mlp",
        config=MlpConfig,
        build=_build_mlp,
        tokens=count_tokens,
        formats=(LLAVA,),
        summary="each feature through matrices with GELU between",
        source="https://arxiv.org/abs/2310.03744",
    ),
)
