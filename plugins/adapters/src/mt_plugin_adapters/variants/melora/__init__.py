"""MELoRA (https://arxiv.org/abs/2402.17263): many small LoRAs, each from one part of the inputs to one part of the outputs.

``ΔW = s · blockdiag(B_1 A_1, …, B_n A_n)``: with n of rank R the update has rank n R and the parameters of one LoRA of rank R. Every A
begins uniform (Kaiming's, a = sqrt(5), of its own inputs), every B at zero; the scale is alpha / R.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import MeloraConfig

_TESTED = ANY - {"offload"}


def _build(config: MeloraConfig) -> Adapter:
    from .layer import Melora

    return Melora(config)


COMPONENT = AdapterComponent(
    name="melora",
    config=MeloraConfig,
    build=_build,
    summary="small LoRAs side by side, each on its part of the inputs and outputs",
    source="https://arxiv.org/abs/2402.17263",
    layouts=_TESTED,
)
