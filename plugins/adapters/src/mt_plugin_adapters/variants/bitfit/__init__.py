"""BitFit (https://arxiv.org/abs/2106.10199): the biases are trained, and nothing else.

Most decoders have few biases or none; with ``add``, the targets that have none get one, which begins at zero. A merged model then has
biases that its family's published form may have no place for.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import BitFitConfig

_TESTED = ANY - {"offload"}


def _build(config: BitFitConfig) -> Adapter:
    from .layer import BitFit

    return BitFit(config)


COMPONENT = AdapterComponent(
    name="bitfit",
    config=BitFitConfig,
    build=_build,
    summary="trains the biases only",
    source="https://arxiv.org/abs/2106.10199",
    layouts=_TESTED,
)
