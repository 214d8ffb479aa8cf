"""RandLoRA (https://arxiv.org/abs/2502.00987): an update of full rank, from random matrices that all layers share.

``ΔW = s · Σ_j B_j Λ_j A Γ_j``: one random A of the rank and N random B_j, N x rank at least the smaller side of the
weight, all frozen; each layer trains the diagonals Λ_j (beginning at zero) and Γ_j (at one over the larger of their
sides). Here as peft has it: matrices of the largest target's size of which a layer takes the first rows and columns,
and the smaller side on A. A larger rank means *fewer* parameters.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import RandLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: RandLoraConfig) -> Adapter:
    from .layer import RandLora

    return RandLora(config)


COMPONENT = AdapterComponent(
    name="randlora",
    config=RandLoraConfig,
    build=_build,
    summary="full rank from shared random matrices, each layer trains diagonals",
    source="https://arxiv.org/abs/2502.00987",
    layouts=_TESTED,
)
