"""DoRA (https://arxiv.org/abs/2402.09353): a weight's length and its direction are trained apart; LoRA turns the direction.

``y = m / ‖W + s·BA‖ · (W x + s·BA x)``, with one length for each row of the weight and ``m`` beginning as ``‖W‖``. The norm is
a constant to the gradient (the paper's section 4.3). Dropout is on the inputs of BA alone.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import Dora

    return Dora(config)


COMPONENT = AdapterComponent(
    name="dora",
    config=LowRankConfig,
    build=_build,
    summary="LoRA on a weight's direction, and a trained length for each of its rows",
    source="https://arxiv.org/abs/2402.09353",
    layouts=_TESTED,
)
