"""NLoRA (https://arxiv.org/abs/2502.14482): three matrices, ``W x + s·B N A x``, that begin as pieces of the weight,
without any decomposition.

Nyström's method takes a matrix for what its first r rows and columns say of it: ``A = W[:r]``, ``B = W[:, :r]``, and
between them their common block. ``N = W[:r, :r]`` is that block itself, as in the authors' code (Nyström's own would
be its pseudo-inverse). Nothing is taken off the frozen weight, so that the first output is not that of the base: it
is ``W x + s·B N A x``. N is under the name of MoSLoRA's, ``lora_AB``.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Nlora

    return Nlora(config)


COMPONENT = AdapterComponent(
    name="nlora",
    config=LowRankConfig,
    build=_build,
    summary="three matrices initialised with rows, columns and a block of the weight",
    source="https://arxiv.org/abs/2502.14482",
    layouts=_TESTED,
    exact_at_init=False,
)
