"""IncreLoRA (https://arxiv.org/abs/2308.12043): LoRA that begins with a small rank and grows where it matters.

``W x + (alpha / r) · Σ_i λ_i b_i (a_i · x)`` over the r ranks that a layer has so far. After every ``every_steps`` the ``top``
most important layers get ``grow_by`` ranks more, until there are ``target_rank`` on average. The importance of a layer is the
product of two running means: of ``S = Σ|ΔW ∘ ∂L/∂ΔW| / √(inputs · outputs)``, and of how far S is from its mean. Advance learning:
each layer always has ``grow_by`` ranks in reserve, whose a and b are trained with λ held at 1e-5; where the layer grows, their λ begin
to learn; in the end those that are left get λ = 0. All a and b are held near orthonormal by the gradient of
``γ (‖AAᵀ - I‖² + ‖BᵀB - I‖²)``.

The scale by the present rank, the root in S (as remembered, the paper says mean) and the 1e-5 are those of the authors' code
(https://github.com/FeiyuZhang98/IncreLoRA), which was read; the paper's text was not at hand. The orthogonal term is AdaLoRA's, over
all ranks of a layer together (that code takes the root of each norm, pair by pair). Its second warm-up, of the new ranks' learning
rate alone, is not here. In that code S is that of the last micro-batch on each process; here ∂L/∂ΔW is that of the whole step, summed
before the absolute value: until the last growth each rank keeps one fp32 matrix of each adapted weight's size from the backward to the
update, and sums it over ranks. The ranking is over all layers, so that no pipeline can be had.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import IncreLoraConfig

_TESTED = ANY - {"offload", "pipeline"}


def _build(config: IncreLoraConfig) -> Adapter:
    from .adapter import IncreLora

    return IncreLora(config)


COMPONENT = AdapterComponent(
    name="increlora",
    config=IncreLoraConfig,
    build=_build,
    summary="LoRA whose ranks grow during training where they matter most",
    source="https://arxiv.org/abs/2308.12043",
    layouts=_TESTED,
)
