"""LoRA-Dash (https://arxiv.org/abs/2409.01035): LoRA, and after some steps the weight's singular directions that it
has changed most are trained as such.

With ``W = U S Vᵀ``, and ``ΔW = s·BA`` after ``explore_steps`` updates, the change rate of direction i is ``|uᵢᵀ ΔW
vᵢ| / |sᵢ|``. From then on ``W x + s·BA x + Σ dᵢ uᵢ vᵢᵀ x`` over the ``directions`` of the highest rates, with one
trained number dᵢ each, which begins at zero. The directions are frozen parameters; until they are chosen they are
zero, and so is the gradient of d.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import DashConfig

_TESTED = ANY - {"offload"}


def _build(config: DashConfig) -> Adapter:
    from .adapter import LoraDash

    return LoraDash(config)


COMPONENT = AdapterComponent(
    name="lora-dash",
    config=DashConfig,
    build=_build,
    summary="LoRA, and trained lengths for the singular directions that it has changed most",
    source="https://arxiv.org/abs/2409.01035",
    layouts=_TESTED,
)
