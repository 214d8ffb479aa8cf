"""PRoLoRA (https://arxiv.org/abs/2402.16902): the columns of A (and the rows of B) repeat in pieces, each turned along the rank.

``ΔW = s · B A``. Of the rank's rows of A the first ``unshared`` are free; the others are one piece of E / m columns,
repeated m times, the i-th copy rolled by i times ``max(⌊rows / m⌋, 1)`` rows; B likewise with n pieces of its rows. A
begins uniform with the bound of the whole A's inputs (the paper's rectified initialisation), B at zero. With
``pieces`` 1 and 1 it is LoRA.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import ProLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: ProLoraConfig) -> Adapter:
    from .layer import ProLora

    return ProLora(config)


COMPONENT = AdapterComponent(
    name="prolora",
    config=ProLoraConfig,
    build=_build,
    summary="LoRA whose matrices repeat a piece, each copy rolled along the rank",
    source="https://arxiv.org/abs/2402.16902",
    layouts=_TESTED,
)
