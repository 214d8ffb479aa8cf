"""VeRA (https://arxiv.org/abs/2310.11454): ``W x + b ⊙ (B (d ⊙ (A x)))``, with A and B random, frozen and the same everywhere.

Each layer trains the two vectors alone: d, of the rank, begins at ``d_initial``; b, of the outputs, at zero. A and B have the size
of the largest target, and a layer takes the first columns and rows that it needs, as peft does.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import VeraConfig

_TESTED = ANY - {"offload"}


def _build(config: VeraConfig) -> Adapter:
    from .layer import Vera

    return Vera(config)


COMPONENT = AdapterComponent(
    name="vera",
    config=VeraConfig,
    build=_build,
    summary="two trained vectors a layer around random matrices that all layers share",
    source="https://arxiv.org/abs/2310.11454",
    layouts=_TESTED,
)
