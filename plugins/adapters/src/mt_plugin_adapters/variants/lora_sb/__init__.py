"""LoRA-SB (https://arxiv.org/abs/2411.19557): ``W x + s·B R A x`` with the outer two frozen as singular vectors of a first
step of full training, and the R x R matrix between them trained.

``ΔW = -η sign(G)`` is what a first step of Adam does, G the mean gradient with respect to the weight; of ``ΔW = U S Vᵀ``, ``B = U_r``,
``A = V_rᵀ`` and ``R = S_r / s``, so that the update begins as ΔW cut to rank r. The weight stays: the first output is
that of a model one step of size η on. The paper has no scale, which is alpha = rank (s = 1) here; at any s it begins alike.
R is under the name of LoRA-XS's, ``lora_R``. Of a gradient that is zero but for rounding the sign is chance, and so are those
entries of ΔW.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import LoraSbConfig


def _build(config: LoraSbConfig) -> Adapter:
    from .adapter import LoraSb

    return LoraSb(config)


COMPONENT = AdapterComponent(
    name="lora-sb",
    config=LoraSbConfig,
    build=_build,
    summary="a trained square matrix between frozen singular vectors of a first full-training step",
    source="https://arxiv.org/abs/2411.19557",
    layouts=PROBED,
    exact_at_init=False,
    on_quantized=False,
)
