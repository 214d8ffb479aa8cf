"""GoRA (https://arxiv.org/abs/2502.12171): LoRA with ranks after the importance of the weights to the loss, whose B begins as what A
can take of the gradient.

Importance of a layer is the mean of ``|W ∘ G|``, G the gradient with respect to the weight; ``rank_allocation.py`` says how ranks
follow from it, between ``min_rank`` and ``max_rank``. A is drawn as for LoRA, ``B = -ξ G Aᵀ (A Aᵀ)⁻¹`` (the pseudo-inverse: the
nearest to -ξ G among all B A). ``ξ = γ √(inputs / r) / s``, the paper's ``γ √inputs / α`` at its scale α/√r, makes the update
begin as long as γ of the gradient is. The weight stays.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import GoraConfig


def _build(config: GoraConfig) -> Adapter:
    from .adapter import Gora

    return Gora(config)


COMPONENT = AdapterComponent(
    name="gora",
    config=GoraConfig,
    build=_build,
    summary="LoRA with ranks by importance, and B initialised from the gradient",
    source="https://arxiv.org/abs/2502.12171",
    layouts=PROBED,
    exact_at_init=False,
    on_quantized=False,
)
