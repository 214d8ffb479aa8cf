"""LoKr (https://arxiv.org/abs/2212.10650, KronA; in LyCORIS https://arxiv.org/abs/2309.14859): a Kronecker product as the update.

``ΔW = s · C ⊗ D``: inputs and outputs are products of two numbers each (``factor``), C has the smaller ones and D the larger. D is a
product of rank R where R is under half of its larger side, and C likewise with ``decompose_both``; names and rules are peft's. C (or the
first of its factors) begins at zero, the rest uniform (Kaiming's, a = sqrt(5)).
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import LokrConfig

_TESTED = ANY - {"offload"}


def _build(config: LokrConfig) -> Adapter:
    from .layer import Lokr

    return Lokr(config)


COMPONENT = AdapterComponent(
    name="lokr",
    config=LokrConfig,
    build=_build,
    summary="a Kronecker product of a small and a larger, low-rank matrix",
    source="https://arxiv.org/abs/2309.14859",
    layouts=_TESTED,
)
