"""MoRA (https://arxiv.org/abs/2405.12130): one square matrix of the size that LoRA's two would have, between fixed maps.

``y = W x + decompress(M compress(x))``, M of r̂ x r̂, ``r̂ = ⌊sqrt((E + F) R)⌋``, beginning at zero. No scale. Two of the paper's maps:

- ``rotation`` (even r̂): x is cut into pieces of r̂ numbers (the last one goes on with x's beginning), the j-th piece turned by j times
  the angles of RoPE, so that M knows the pieces apart; M of each piece, one after the other, are the output.
- ``sharing``: r̂ sums over neighbouring inputs go in, and the r̂ numbers that come out are repeated. The authors take it for large ranks.

Outputs beyond F are cut off; where there are too few, they are repeated. Both are linear, so that they merge.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import MoraConfig

_TESTED = ANY - {"offload"}


def _build(config: MoraConfig) -> Adapter:
    from .layer import Mora

    return Mora(config)


COMPONENT = AdapterComponent(
    name="mora",
    config=MoraConfig,
    build=_build,
    summary="a square matrix with as many parameters as LoRA, between maps without parameters",
    source="https://arxiv.org/abs/2405.12130",
    layouts=_TESTED,
)
