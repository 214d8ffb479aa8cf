"""LoRA+ (https://arxiv.org/abs/2402.12354): LoRA whose B has a rate of ``ratio`` times that of A.

With one rate for both, the features of a wide model hardly change: B should move faster by a factor that grows with the width.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import LoraPlusConfig

_TESTED = ANY - {"offload"}


def _build(config: LoraPlusConfig) -> Adapter:
    from .adapter import LoraPlus

    return LoraPlus(config)


COMPONENT = AdapterComponent(
    name="lora-plus",
    config=LoraPlusConfig,
    build=_build,
    summary="LoRA with a higher learning rate for B than for A",
    source="https://arxiv.org/abs/2402.12354",
    layouts=_TESTED,
)
