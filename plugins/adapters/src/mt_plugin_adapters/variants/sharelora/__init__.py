"""ShareLoRA (https://arxiv.org/abs/2406.10785): LoRA, with A, B or both the same in all blocks.

``W_i x + s · B_i A x`` (``share`` A, the paper's choice), ``s · B A_i`` (B) or ``s · B A`` (AB); shared among the
projections of one kind and rank. A begins uniform and B at zero, as in LoRA.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import ShareLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: ShareLoraConfig) -> Adapter:
    from .layer import ShareLora

    return ShareLora(config)


COMPONENT = AdapterComponent(
    name="sharelora",
    config=ShareLoraConfig,
    build=_build,
    summary="LoRA that shares A, B or both among all blocks",
    source="https://arxiv.org/abs/2406.10785",
    layouts=_TESTED,
)
