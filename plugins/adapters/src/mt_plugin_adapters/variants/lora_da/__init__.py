"""LoRA-DA (https://arxiv.org/abs/2510.24561): LoRA that begins where a natural gradient step leads, as far as few rows can tell.

Loss and data give, for every layer, the gradient G of the weight and its Fisher matrix in Kronecker form (K-FAC): ``J = Y ⊗ Z``, Z the
mean of x xᵀ over the inputs, Y the diagonal of mean squares of the gradient with respect to each output. One step leads to ``D = -J⁻¹G``,
of which the columns of A are to have as much as possible, and as little as possible of the directions in which N tokens leave the
weight uncertain: A begins as the r eigenvectors of the smallest eigenvalues of

``Ω = β / N · Σ_j (1 / Y_jj) Z⁻¹ - Σ_j D_j D_jᵀ``    (one D_j for each output j)

and B as what these have of D; both are divided by √γ. As in the authors' code (https://github.com/zqy0126/LoRA-DA) Y is diagonal,
D is divided by its largest singular value (and Ω by its square), the weight stays, and γ is 1024; there β is 0.03 and a sample one
observation. Here an observation is a trained token, with β = 1 as in the paper, and what is added to the diagonals of Z and Y is a
share of their means. What was read are that code and accounts of the paper, which agree, and not its own text. Ω is inputs x inputs,
and its eigenvectors are exact. A layer whose gradient is zero begins as LoRA's.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import LoraDaConfig


def _build(config: LoraDaConfig) -> Adapter:
    from .adapter import LoraDa

    return LoraDa(config)


COMPONENT = AdapterComponent(
    name="lora-da",
    config=LoraDaConfig,
    build=_build,
    summary="LoRA initialised with a natural-gradient step, without directions that few rows leave uncertain",
    source="https://arxiv.org/abs/2510.24561",
    layouts=PROBED,
    exact_at_init=False,
    on_quantized=False,
)
