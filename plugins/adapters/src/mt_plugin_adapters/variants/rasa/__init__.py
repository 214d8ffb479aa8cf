"""RaSA (https://arxiv.org/abs/2503.12576): each layer gives k of its ranks to a pool that all blocks use, and weighs them.

``ΔW_i = [B_i B_S] diag(d_i) [A_i ; A_S]``: rank - k private ranks, and a pool of L k, L the number of blocks with
this kind of projection. As in the paper, A begins uniform, B at zero, and d_i at ``alpha / (2 (rank - k))`` for
private and ``alpha / (2 L k)`` for pooled ranks; there is no scale beside it.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import RasaConfig

_TESTED = ANY - {"offload"}


def _build(config: RasaConfig) -> Adapter:
    from .layer import Rasa

    return Rasa(config)


COMPONENT = AdapterComponent(
    name="rasa",
    config=RasaConfig,
    build=_build,
    summary="LoRA with some ranks of each layer in a pool that all blocks use, each with its own weights",
    source="https://arxiv.org/abs/2503.12576",
    layouts=_TESTED,
)
