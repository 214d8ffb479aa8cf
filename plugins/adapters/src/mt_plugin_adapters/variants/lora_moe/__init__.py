"""Mixture of LoRA experts: ``W x + s · Σ_i g_i(x) B_i A_i x`` (MoLoRA, https://arxiv.org/abs/2309.05444).

g is the softmax of a trained gate, one for each projection. With ``top_k`` equal to ``experts`` it is the paper's
soft mixture; fewer (the default) take the largest, divided by their sum, as MixLoRA
(https://arxiv.org/abs/2404.15159) does, whose balance loss this is: that of Switch transformers, row by row, of trained
tokens alone. So neither padding nor how rows are divided among micro-batches, ranks or parts of rows changes it. What is
reported as loss is without it. A and the gate begin uniform, B at zero.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import LoraMoeConfig

_TESTED = ANY - {"offload"}


def _build(config: LoraMoeConfig) -> Adapter:
    from .layer import LoraMoe

    return LoraMoe(config)


COMPONENT = AdapterComponent(
    name="lora-moe",
    config=LoraMoeConfig,
    build=_build,
    summary="LoRA experts behind a gate; each token uses some of them",
    source="https://arxiv.org/abs/2309.05444",
    layouts=_TESTED,
    mergeable=False,
)
