"""MoSLoRA (https://arxiv.org/abs/2406.11909): ``W x + s·B M A x``, with a trained R x R matrix M between A and B.

M mixes the subspaces of A and B: each of the R rows of A reaches each of the R columns of B, which in LoRA are pairs.
A and M begin uniform (Kaiming's, a = sqrt(5)), as in the authors' code, or M orthogonal, the other start that the paper finds
good; B begins at zero.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import MosloraConfig

_TESTED = ANY - {"offload"}


def _build(config: MosloraConfig) -> Adapter:
    from .layer import Moslora

    return Moslora(config)


COMPONENT = AdapterComponent(
    name="moslora",
    config=MosloraConfig,
    build=_build,
    summary="LoRA with a trained square matrix between A and B",
    source="https://arxiv.org/abs/2406.11909",
    layouts=_TESTED,
)
