"""MoLA (https://arxiv.org/abs/2402.08562): a mixture of LoRA experts with a number of experts that depends on the depth.

The layer is that of ``lora-moe``. ``experts`` are the numbers from the first blocks to the last, each for an equal
part of the blocks that have targets; the paper's best, and the default, is 2, 4, 6, 8. It takes the two best of each
token, with the balance loss of Switch transformers, which here is taken row by row (see ``lora-moe``).
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import MolaConfig

_TESTED = ANY - {"offload"}


def _build(config: MolaConfig) -> Adapter:
    from .layer import Mola

    return Mola(config)


COMPONENT = AdapterComponent(
    name="mola",
    config=MolaConfig,
    build=_build,
    summary="LoRA experts, with more experts in later blocks",
    source="https://arxiv.org/abs/2402.08562",
    layouts=_TESTED,
    mergeable=False,
)
