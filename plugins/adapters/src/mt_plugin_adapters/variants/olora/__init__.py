"""OLoRA (https://arxiv.org/abs/2406.01775): LoRA that begins with orthonormal columns, those of the weight's QR
decomposition.

``W = Q R``; ``B`` is the first r columns of Q, ``A`` the first r rows of R, and what is frozen is the rest, ``W -
s·BA``. The first output is that of the base but for rounding. To the base as it was, a trained adapter is the LoRA
``[B, -B₀] [A; A₀]`` of rank 2R, as for PiSSA.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Olora

    return Olora(config)


COMPONENT = AdapterComponent(
    name="olora",
    config=LowRankConfig,
    build=_build,
    summary="LoRA initialised with the first columns of the weight's QR decomposition",
    source="https://arxiv.org/abs/2406.01775",
    layouts=_TESTED,
    rewrites_base=True,
)
