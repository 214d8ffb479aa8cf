"""AdaLoRA (https://arxiv.org/abs/2303.10512): ``W x + s·P Λ Q x``, whose ranks move to where they matter.

P (``lora_B``) and Q (``lora_A``) are held near orthogonal by the gradient of ``γ (‖PᵀP - I‖² + ‖QQᵀ - I‖²)``; Λ (``lora_E``) is a vector.
The importance of a number is the product of two running means: of its sensitivity ``|w ∂L/∂w|``, and of how far that is
from its mean. A rank's importance is that of its λ and the means of those of its column of P and its row of Q. Every so many steps
the λ of the least important ranks of all layers are set to 0; how many are left falls by a cubic from all to ``target_rank`` a
layer. Those that are left at the begin of the final steps stay.

As in the authors' code, and not in the paper's formula, the cubic begins with all and ends with the target. peft takes the root of
each norm, and the mean over layers; this is the paper's sum, which is in the gradient's norm that is printed and clipped.
The ranking is over all layers, so that no pipeline can be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import AdaLoraConfig

_TESTED = ANY - {"offload", "pipeline"}


def _build(config: AdaLoraConfig) -> Adapter:
    from .adapter import AdaLora

    return AdaLora(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    """All layers of peft's have the scale of the first rank, however many ranks are left of it."""
    if config.get("peft_type") != "ADALORA":
        return None
    from mt_core.adapters import targets_option

    rank, alpha = config.get("init_r", 12), config.get("lora_alpha", 8)
    kept = {name.rpartition(".")[0]: sum(mask) for name, mask in (config.get("rank_pattern") or {}).items()}
    if none := [name for name, left in kept.items() if not left]:
        raise ValueError(f"rank_pattern leaves no rank of {none[0]}, a layer that peft does not open either")
    fewer = {name: left for name, left in kept.items() if left != rank and name in modules}
    return {
        "targets": targets_option(config, modules),
        "rank": rank,
        "alpha": alpha,
        "dropout": config.get("lora_dropout") or 0.0,
        "target_rank": min(config.get("target_r", 8), rank, *fewer.values()),
        "ranks": fewer,
        "alphas": {name: alpha * left / rank for name, left in fewer.items()},
    }


COMPONENT = AdapterComponent(
    name="adalora",
    config=AdaLoraConfig,
    build=_build,
    summary="LoRA in the form of a singular value decomposition; training prunes the least important singular values",
    source="https://arxiv.org/abs/2303.10512",
    layouts=_TESTED,
    peft_options=_options,
)
