"""RandLoRA (https://arxiv.org/abs/2502.00987): an update of full rank, from random matrices that all layers share.

``ΔW = s · Σ_j B_j Λ_j A Γ_j``: one random A of the rank and N random B_j, N x rank at least the smaller side of the
weight, all frozen; each layer trains the diagonals Λ_j (beginning at zero) and Γ_j (at one over the larger of their
sides). Here as peft has it: matrices of the largest target's size of which a layer takes the first rows and columns,
and the smaller side on A. A larger rank means *fewer* parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import RandLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: RandLoraConfig) -> Adapter:
    from .layer import RandLora

    return RandLora(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "RANDLORA":
        return None
    from mt_core.adapters import targets_option

    drawn = config.get("save_projection") is False
    return {
        "targets": targets_option(config, modules),
        "projection_seed": config.get("projection_prng_key", 0) if drawn else None,
        "rank": config.get("r", 32),
        "alpha": config.get("randlora_alpha", 640),
        "dropout": config.get("randlora_dropout") or 0.0,
    }


COMPONENT = AdapterComponent(
    name="randlora",
    config=RandLoraConfig,
    build=_build,
    summary="a full-rank update from shared random matrices; each layer trains diagonals",
    source="https://arxiv.org/abs/2502.00987",
    layouts=_TESTED,
    peft_options=_options,
)
