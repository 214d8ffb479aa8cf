"""DenseLoRA (https://arxiv.org/abs/2505.23808): an encoder and a decoder for all blocks, and a small square matrix in each layer.

``W x + s · φ(W_d (M φ(W_e x)))``, φ GELU: W_e (R x E) and W_d (F x R) are those of all projections of a kind and
rank, M (R x R) is the layer's own. As in the authors' code W_e and M begin uniform, W_d at zero, and φ comes after
the decoder too. It is not linear in x, so that it cannot be merged.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import DenseLora

    return DenseLora(config)


COMPONENT = AdapterComponent(
    name="denselora",
    config=LowRankConfig,
    build=_build,
    summary="a small trained matrix in each layer, between an encoder and a decoder that all blocks share",
    source="https://arxiv.org/abs/2505.23808",
    layouts=_TESTED,
    mergeable=False,
)
