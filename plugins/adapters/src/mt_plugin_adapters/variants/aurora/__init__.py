"""AuroRA (https://arxiv.org/abs/2505.18738): LoRA with a trained non-linear function between A and B.

``W x + s · B σ(A x)``, ``σ(z) = tanh(H tanh(z)) + C Σ_i b(z_i)``: H is R x R, b gives the cubic B-splines on five intervals from -1 to 1
(eight of them), C is R x 8. A, H begin uniform (Kaiming's, a = sqrt(5)), C within ±0.1, B at zero: only this last is from the paper.

It is not linear in x, so that no weight does the same. The paper merges all the same, into ``W + s · B σ(A)`` with σ on the columns of A:
that is another function than the one that was trained, and is refused here.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import AuroraConfig

_TESTED = ANY - {"offload"}


def _build(config: AuroraConfig) -> Adapter:
    from .layer import Aurora

    return Aurora(config)


COMPONENT = AdapterComponent(
    name="aurora",
    config=AuroraConfig,
    build=_build,
    summary="LoRA with a trained non-linear function between A and B",
    source="https://arxiv.org/abs/2505.18738",
    layouts=_TESTED,
    mergeable=False,
)
