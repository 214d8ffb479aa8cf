"""NoRA (https://arxiv.org/abs/2408.10280): a small LoRA is trained inside a frozen one, ``W x + s·B (B' A') A x``.

The outer matrices are the weight's largest singular directions, ``A = sqrt(S_r) V_rᵀ`` and ``B = U_r sqrt(S_r)`` of
``W = U S Vᵀ``, and stay; the inner ones are ``inner_A`` (inner rank x rank), uniform at first, and ``inner_B`` (rank
x inner rank), zero at first. The weight itself is not changed, so that the first output is the base's.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import NoraConfig

_TESTED = ANY - {"offload"}


def _build(config: NoraConfig) -> Adapter:
    from .layer import Nora

    return Nora(config)


COMPONENT = AdapterComponent(
    name="nora",
    config=NoraConfig,
    build=_build,
    summary="a trained LoRA of small rank inside a frozen one made of singular directions",
    source="https://arxiv.org/abs/2408.10280",
    layouts=_TESTED,
)
