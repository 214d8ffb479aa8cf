"""LoRA-XS (https://arxiv.org/abs/2405.17604): an R x R matrix is trained between the weight's largest singular directions.

``W = U S Vᵀ``; ``ΔW = s · U_r S_r M V_rᵀ``, with U_r S_r (``lora_B``) and V_rᵀ (``lora_A``) frozen and M (``lora_R``) drawn from a
normal distribution of deviation 1e-5, so that it begins very nearly as the base. The frozen factors are in checkpoints: on another
machine a decomposition may give other signs.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import LoraXsConfig

_TESTED = ANY - {"offload"}


def _build(config: LoraXsConfig) -> Adapter:
    from .layer import LoraXs

    return LoraXs(config)


COMPONENT = AdapterComponent(
    name="lora-xs",
    config=LoraXsConfig,
    build=_build,
    summary="a small square matrix between frozen singular directions of the weight",
    source="https://arxiv.org/abs/2405.17604",
    layouts=_TESTED,
    exact_at_init=False,
)
