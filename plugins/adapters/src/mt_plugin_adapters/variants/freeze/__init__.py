"""Freezing: the last blocks are trained, and the rest of the model is not. Nothing is added.

Layers near the output are the ones that fine-tuning changes most and first (https://arxiv.org/abs/1801.06146, who thaw them
from the last one on). Unlike ``train.disable``, it needs no number of a block, and its checkpoints can be trained-only.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import FreezeConfig

_TESTED = ANY - {"offload"}


def _build(config: FreezeConfig) -> Adapter:
    from .adapter import Freeze

    return Freeze(config)


COMPONENT = AdapterComponent(
    name="freeze",
    config=FreezeConfig,
    build=_build,
    summary="trains the last blocks and the parameters that patterns name",
    source="https://arxiv.org/abs/1801.06146",
    layouts=_TESTED,
    on_quantized=False,
)
