"""DuDe (https://arxiv.org/abs/2505.14367): DoRA whose LoRA begins as the weight's largest singular directions, as
PiSSA's does.

``y = m / ‖W' + s·BA‖ · (W' x + s·BA x)`` with ``s·BA`` the best rank-r approximation of the weight, ``W'`` the rest,
and ``m`` beginning as the lengths of the weight's rows. The first output is that of the base but for rounding.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from ..pissa.config import PissaConfig

_TESTED = ANY - {"offload"}


def _build(config: PissaConfig) -> Adapter:
    from .layer import Dude

    return Dude(config)


COMPONENT = AdapterComponent(
    name="dude",
    config=PissaConfig,
    build=_build,
    summary="DoRA initialised with the weight's largest singular directions",
    source="https://arxiv.org/abs/2505.14367",
    layouts=_TESTED,
    rewrites_base=True,
)
