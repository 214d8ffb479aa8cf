"""DeLoRA (https://arxiv.org/abs/2503.18225): LoRA whose directions are trained apart from their strength, which has a bound.

``ΔW = λ / R · Σ_i b_i a_iᵀ / (‖b_i‖ ‖a_i‖) · diag(‖W‖)``, with the lengths of the frozen weight's columns, and λ trained: no update is
longer than λ ‖W‖. As in peft A begins uniform, B at zero, and lengths below 1e-4 count as 1e-4 (the authors' first code begins with
B drawn and takes the first update off the weight). peft advises 10 to
100 times the learning rate of LoRA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import DeloraConfig

_TESTED = ANY - {"offload"}


def _build(config: DeloraConfig) -> Adapter:
    from .layer import Delora

    return Delora(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "DELORA":
        return None
    from mt_core.adapters import patterns_option, targets_option

    return {
        "targets": targets_option(config, modules),
        "ranks": patterns_option(config.get("rank_pattern"), modules),
        "rank": config.get("r", 8),
        "strength": config.get("delora_lambda") or 15.0,
    }


COMPONENT = AdapterComponent(
    name="delora",
    config=DeloraConfig,
    build=_build,
    summary="LoRA of normalised directions with a trained strength",
    source="https://arxiv.org/abs/2503.18225",
    layouts=_TESTED,
    peft_options=_options,
)
