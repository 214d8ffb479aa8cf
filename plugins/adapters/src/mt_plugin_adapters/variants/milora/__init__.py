"""MiLoRA (https://arxiv.org/abs/2406.09044): LoRA that begins as the smallest singular directions of the weight, so
that the largest stay.

``W = U S Vᵀ``; with the r smallest singular values ``A = sqrt(S_r / s) V_rᵀ`` and ``B = U_r sqrt(S_r / s)``. What is
frozen is the rest, ``W - s·BA``. The first output is that of the base but for rounding. To the base as it was, a
trained adapter is a LoRA of rank 2R, as for PiSSA.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Milora

    return Milora(config)


COMPONENT = AdapterComponent(
    name="milora",
    config=LowRankConfig,
    build=_build,
    summary="LoRA initialised with the weight's smallest singular directions",
    source="https://arxiv.org/abs/2406.09044",
    layouts=_TESTED,
    rewrites_base=True,
)
