"""A norm, neighbours side by side, and an MLP of their width: Qwen's (https://arxiv.org/abs/2409.12191). Torch is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mt_core import DataError, MtConfig, UsageError
from mt_core.media import Grid, ProjectorComponent

from ..groups import count_groups
from .huggingface import QWEN

if TYPE_CHECKING:
    from mt_core.nn import Projector


class MergerConfig(MtConfig):
    """How many features become one hidden state, and the norm: Qwen2-VL and Qwen3-VL have LayerNorm, Qwen2.5-VL RMSNorm."""

    factor: int = Field(2, ge=1, le=64, description="neighbours in a row and in a column that become one hidden state")
    norm: Literal["rms", "layer"] = Field("rms", description="RMSNorm or LayerNorm on each feature")
    eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square or the variance in the norm")
    levels: int = Field(
        0,
        ge=0,
        le=64,
        description="further features of the encoder, each added behind one more of the model's first blocks",
    )


def count_tokens(config: MergerConfig, features: int, grid: Grid | None) -> int:
    """Return the hidden states of an item; one without a grid is merged as its features stand. Raises ``DataError`` for a rest."""
    if grid is not None:
        return count_groups("merger", config.factor, grid)
    if not features or features % config.factor**2:
        raise DataError(
            f"the merger projector joins {config.factor**2} features, and the item has {features}; set its factor to one whose square"
            " divides them, or leave the item out"
        )
    return features // config.factor**2


def build(config: MergerConfig, source: int, target: int) -> Projector:
    """Return the projector from features of ``source`` to hidden states of ``target`` channels. Raises ``UsageError`` for other levels."""
    if source % (1 + config.levels):
        raise UsageError(
            f"the merger projector has levels={config.levels}, and the encoder's {source} channels are not features of so many blocks more;"
            " set levels to the number of blocks that the encoder takes features of (taps), or to 0"
        )
    from .module import Merger

    return Merger(config, source=source, target=target)


COMPONENT = ProjectorComponent(
    name="merger",
    config=MergerConfig,
    build=build,
    tokens=count_tokens,
    formats=(QWEN,),
    summary="a norm, squares of neighbours side by side, and an MLP of their width",
    source="https://arxiv.org/abs/2409.12191",
)
