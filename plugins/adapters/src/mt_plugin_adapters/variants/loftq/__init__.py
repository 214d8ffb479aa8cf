"""LoftQ (https://arxiv.org/abs/2310.08659): LoRA over a quantized base that begins as the best correction of what
quantization has lost.

With Q the stored weight and W what it was made from, ``s·BA`` begins as the r largest singular directions of ``W -
Q``: ``A = sqrt(S_r / s) V_rᵀ``, ``B = U_r sqrt(S_r / s)``. So the first output is nearer to that of the weight as it
was than the quantized base's is, and not equal to either. W is read once more, a layer at a time, when training
begins. This is one of the paper's alternating steps, which is what peft does by default: more of them would store
another Q, and a quantized base is in no checkpoint, but made again from W. A layer that is not quantized has lost
nothing, and begins as LoRA's.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Loftq

    return Loftq(config)


COMPONENT = AdapterComponent(
    name="loftq",
    config=LowRankConfig,
    build=_build,
    summary="LoRA initialised to correct the quantization error",
    source="https://arxiv.org/abs/2310.08659",
    layouts=_TESTED,
    notice="layers that are not quantized begin as LoRA's; it is made for --quantizer nf4",
)
