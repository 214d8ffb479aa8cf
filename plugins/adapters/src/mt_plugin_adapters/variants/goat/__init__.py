"""GOAT (https://arxiv.org/abs/2502.16894): a mixture of LoRA experts that begin as segments of the weight's singular values.

Of ``W = U S Vᵀ`` in as many segments as there are experts, each expert takes the first R directions of its own: ``B_i
= U_i sqrt(S_i / (s ρ))``, ``A_i = sqrt(S_i / (s ρ)) V_iᵀ``, with the paper's scale ``s = sqrt(3 η E / R)``, E the
inputs, η the ratio of the rates of full training and of this one, and ρ what keeps the first values small. The frozen
weight loses what an even load would add, ``s / X · Σ B_i A_i`` of X experts; what a token takes differs from that, so
that the first output is the base's on average alone. Routing and balance loss are those of ``lora-moe``.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import GoatConfig

_TESTED = ANY - {"offload"}


def _build(config: GoatConfig) -> Adapter:
    from .layer import Goat

    return Goat(config)


COMPONENT = AdapterComponent(
    name="goat",
    config=GoatConfig,
    build=_build,
    summary="LoRA experts initialised with segments of the weight's singular value decomposition",
    source="https://arxiv.org/abs/2502.16894",
    layouts=_TESTED,
    mergeable=False,
    rewrites_base=True,
    exact_at_init=False,
)
