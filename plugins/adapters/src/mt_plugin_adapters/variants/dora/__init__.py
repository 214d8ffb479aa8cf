"""DoRA (https://arxiv.org/abs/2402.09353): a weight's length and its direction are trained apart; LoRA turns the direction.

``y = m / ‖W + s·BA‖ · (W x + s·BA x)``, with one length for each row of the weight and ``m`` beginning as ``‖W‖``. The norm is
a constant to the gradient (the paper's section 4.3). Dropout is on the inputs of BA alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Dora

    return Dora(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "LORA" or not config.get("use_dora"):
        return None
    from mt_core.adapters import low_rank_options

    return low_rank_options(config, modules)


COMPONENT = AdapterComponent(
    name="dora",
    config=LowRankConfig,
    build=_build,
    summary="LoRA on the direction of a weight, with a trained magnitude for each row",
    source="https://arxiv.org/abs/2402.09353",
    layouts=_TESTED,
    peft_options=_options,
)
