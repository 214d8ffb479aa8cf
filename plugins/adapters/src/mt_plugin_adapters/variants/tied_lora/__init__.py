"""Tied-LoRA (https://arxiv.org/abs/2311.09578): ``W x + s · v ⊙ (B (u ⊙ (A x)))`` with A and B the same in all blocks.

Of the paper's combinations this is the one that trains all four (``vBuA``): A and B together, over all blocks that
have a projection of this kind and rank, the vectors u (of the rank) and v (of the outputs) in each layer by itself.
It begins as LoRA does: A uniform, B zero, and both vectors at 1, so that the first output is the base's. (With A and
B frozen it is VeRA, an adapter of its own.)
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import TiedLora

    return TiedLora(config)


COMPONENT = AdapterComponent(
    name="tied-lora",
    config=LowRankConfig,
    build=_build,
    summary="one trained pair for all blocks, and two trained vectors in each layer",
    source="https://arxiv.org/abs/2311.09578",
    layouts=_TESTED,
)
