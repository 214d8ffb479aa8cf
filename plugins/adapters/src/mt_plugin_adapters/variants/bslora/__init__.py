"""BSLoRA (https://proceedings.mlr.press/v267/zhou25k.html): three LoRAs side by side, one's own, one of the block, one of the model.

``ΔW = s · (B A + B' A' + B'' A'')``: the second pair is that of all projections of a block, the third that of all
blocks. Projections differ in size, and two of the paper's ways to fit a shared pair are here:

- ``slice``: it has the size of the largest target, of which a projection takes the middle columns and rows.
- ``kron``: it has ``size`` inputs and outputs, and is multiplied (Kronecker) by a row and a column that each
  projection trains.

The third, gates, goes through a single number on both sides of the shared pair in the authors' code, so that a pair
of any rank is one of rank 1; it is left out. The authors' scale is 2, which is ``alpha = 2 rank``. All A and the
Kronecker factors begin uniform, all B at zero.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import BsLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: BsLoraConfig) -> Adapter:
    from .layer import BsLora

    return BsLora(config)


COMPONENT = AdapterComponent(
    name="bslora",
    config=BsLoraConfig,
    build=_build,
    summary="the sum of three LoRAs: the layer's own, one shared in the block, one shared in the model",
    source="https://proceedings.mlr.press/v267/zhou25k.html",
    layouts=_TESTED,
)
