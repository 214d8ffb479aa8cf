"""LoKr (https://arxiv.org/abs/2212.10650, KronA; in LyCORIS https://arxiv.org/abs/2309.14859): a Kronecker product as the update.

``ΔW = s · C ⊗ D``: inputs and outputs are products of two numbers each (``factor``), C has the smaller ones and D the larger. D is a
product of rank R where R is under half of its larger side, and C likewise with ``decompose_both``; names and rules are peft's. C (or the
first of its factors) begins at zero, the rest uniform (Kaiming's, a = sqrt(5)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import LokrConfig

_TESTED = ANY - {"offload"}


def _build(config: LokrConfig) -> Adapter:
    from .layer import Lokr

    return Lokr(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "LOKR":
        return None
    from mt_core.adapters import low_rank_options

    factor = config.get("decompose_factor", -1)
    return {
        **low_rank_options({**config, "lora_alpha": config.get("alpha", 8)}, modules),
        "factor": None if factor == -1 else factor,
        "decompose_both": bool(config.get("decompose_both")),
    }


COMPONENT = AdapterComponent(
    name="lokr",
    config=LokrConfig,
    build=_build,
    summary="a Kronecker product of a small and a larger, low-rank matrix",
    source="https://arxiv.org/abs/2309.14859",
    layouts=_TESTED,
    peft_options=_options,
)
