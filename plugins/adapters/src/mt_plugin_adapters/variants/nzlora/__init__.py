"""NZLoRA (https://arxiv.org/abs/2505.23194): LoRA whose A and B both begin random, which makes a rate that is too
small matter less.

A is normal with deviation ``scale_a / sqrt(inputs)``, B with ``scale_b / sqrt(outputs)``: the order that the paper
finds for wide layers. With ``exact`` the frozen weight is ``W - s·BA``, so that the first output is that of the base
but for rounding; without, the paper's main case, it begins with that noise in it.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import NonZeroConfig

_TESTED = ANY - {"offload"}


def _build(config: NonZeroConfig) -> Adapter:
    from .layer import NonZero

    return NonZero(config)


COMPONENT = AdapterComponent(
    name="nzlora",
    config=NonZeroConfig,
    build=_build,
    summary="LoRA with A and B both initialised at random",
    source="https://arxiv.org/abs/2505.23194",
    layouts=_TESTED,
    rewrites_base=True,
)
