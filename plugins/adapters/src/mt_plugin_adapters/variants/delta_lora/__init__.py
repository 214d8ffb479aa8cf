"""Delta-LoRA (https://arxiv.org/abs/2309.02411): the frozen weight moves along with the product of A and B.

``W`` becomes ``W + ratio · s · (B'A' - B A)`` after every update of A and B to A' and B' beyond the first
``start_steps``, so that it changes without a gradient or moments of its own. There is no dropout: with it the
gradient of BA would not be that of W. In half precision the weight is rounded at every update, as there is no better
copy of it, and the smallest changes are lost: train in fp32.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import DeltaLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: DeltaLoraConfig) -> Adapter:
    from .adapter import DeltaLora

    return DeltaLora(config)


COMPONENT = AdapterComponent(
    name="delta-lora",
    config=DeltaLoraConfig,
    build=_build,
    summary="LoRA that also adds the change of BA after each update to the frozen weight",
    source="https://arxiv.org/abs/2309.02411",
    layouts=_TESTED,
    rewrites_base=True,
)
