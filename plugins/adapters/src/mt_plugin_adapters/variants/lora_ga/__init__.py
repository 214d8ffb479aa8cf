"""LoRA-GA (https://arxiv.org/abs/2407.05000): LoRA whose first step is as near to that of full training as one of rank 2r
can be.

Of the loss's gradient ``G = U S Vᵀ`` with respect to the weight, (outputs, inputs), A begins as the first r right vectors, and B as the
next r left ones: ``A = c V[:, :r]ᵀ``, ``B = c U[:, r:2r]``, ``c = outputs^¼ / √γ``. What is frozen is ``W - s·BA``, so that the
first output is the base's but for rounding. ``form: peft`` is what peft 0.21 makes of it: A as it is, and B times
c and its singular values.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import LoraGaConfig


def _build(config: LoraGaConfig) -> Adapter:
    from .adapter import LoraGa

    return LoraGa(config)


COMPONENT = AdapterComponent(
    name="lora-ga",
    config=LoraGaConfig,
    build=_build,
    summary="LoRA initialised with singular directions of the gradient",
    source="https://arxiv.org/abs/2407.05000",
    layouts=PROBED,
    rewrites_base=True,
)
