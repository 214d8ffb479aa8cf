"""LoRA-Pro (https://arxiv.org/abs/2407.18242): LoRA whose gradients are changed so that A and B together move the
weight as close as they can to where its own gradient would.

With ``g_A = s·BᵀG`` and ``g_B = s·GAᵀ``, the gradients of a weight's product ``s·BA``, the updates of A and B amount
to one of the weight by ``s·(B g_A + g_B A)``. That is nearest to G for (theorem 2.1)

``g_A → (BᵀB)⁻¹ g_A / s² + X A`` and ``g_B → (I - B (BᵀB)⁻¹ Bᵀ) g_B (AAᵀ)⁻¹ / s² - B X``,

with any X; the one whose gradients are nearest to the plain ones (theorem 2.3) solves ``BᵀB X + X AAᵀ = -(BᵀB)⁻¹ g_A Aᵀ / s²``. Inverses
are those of Moore and Penrose, as B begins at zero. The changed gradients go through clipping and whatever optimizer
the run has. With ``sgd`` this is the paper's algorithm 1, and with ``adamw``, whose moments are those of A and B, the form that
its authors' code calls efficient. Its algorithm 2, Adam with moments of the whole weight's size, is not here: docs/adapters.md
says why.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .adapter import LoraPro

    return LoraPro(config)


COMPONENT = AdapterComponent(
    name="lora-pro",
    config=LowRankConfig,
    build=_build,
    summary="LoRA with gradients changed to move the weight as its full gradient would",
    source="https://arxiv.org/abs/2407.18242",
    layouts=_TESTED,
)
