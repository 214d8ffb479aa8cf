"""LoHa (https://arxiv.org/abs/2108.06098, https://arxiv.org/abs/2309.14859): the update is a product, number by number.

``ΔW = s · (B1 A1) ⊙ (B2 A2)``, of rank R² with twice the parameters of LoRA. Names as in peft: ``hada_w1_a`` is B1,
``hada_w1_b`` is A1. All begin uniform (Kaiming's, a = sqrt(5)) but A2, which begins at zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Loha

    return Loha(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "LOHA":
        return None
    from mt_core.adapters import low_rank_options

    return low_rank_options({**config, "lora_alpha": config.get("alpha", 8)}, modules)


COMPONENT = AdapterComponent(
    name="loha",
    config=LowRankConfig,
    build=_build,
    summary="the elementwise product of two low-rank matrices as the update",
    source="https://arxiv.org/abs/2108.06098",
    layouts=_TESTED,
    peft_options=_options,
)
