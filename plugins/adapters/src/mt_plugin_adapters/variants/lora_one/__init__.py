"""LoRA-One (https://arxiv.org/abs/2502.01235): LoRA that begins as one step of full training, cut to its rank.

Of the loss's negative gradient ``-G = U S Vᵀ`` with respect to the weight, ``B = U_r √S_r / √γ`` and ``A = √S_r V_rᵀ / √γ``: the update
begins as ``s/γ`` times the best matrix of rank r in place of -G. The weight stays, so that the first output is that
of a model one step on. A layer whose gradient is zero (an expert that no token chose) begins as LoRA's. The paper's
preconditioner of the later steps is a matter of the optimizer, and not here.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import LoraOneConfig


def _build(config: LoraOneConfig) -> Adapter:
    from .adapter import LoraOne

    return LoraOne(config)


COMPONENT = AdapterComponent(
    name="lora-one",
    config=LoraOneConfig,
    build=_build,
    summary="LoRA initialised with one step of full training, truncated to its rank",
    source="https://arxiv.org/abs/2502.01235",
    layouts=PROBED,
    exact_at_init=False,
    on_quantized=False,
)
