"""ReLoRA (https://arxiv.org/abs/2307.05695): LoRA that is merged into the weight every so many steps and begins anew,
so that the sum of what it learns has a high rank.

After every ``every_steps`` updates ``W`` becomes ``W + s·BA``, A is drawn again, B is zero, and of the optimizer's
moments only a small share is kept: the largest numbers (``magnitude``), or ones that are drawn (``random``). The
output does not change by that. The rate has to warm up again after each: ``--schedule relora`` with the same number
as ``reset_steps``. As in the authors' code the sizes of first and second moments are looked at apart, so that a first
one may be left over a second one of 0: without that warm-up the next update makes a leap there. It differs from PLoRA
in what is kept of the moments. In half precision the frozen weight is rounded at every merge, as there is no better
copy of it.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from ..plora import MOMENTS_APART
from .config import ReloraConfig

_TESTED = ANY - {"offload"}


def _build(config: ReloraConfig) -> Adapter:
    from .adapter import Relora

    return Relora(config)


COMPONENT = AdapterComponent(
    name="relora",
    config=ReloraConfig,
    build=_build,
    summary="LoRA that is merged and restarted at a fixed interval, with pruned optimizer moments",
    source="https://arxiv.org/abs/2307.05695",
    layouts=_TESTED,
    rewrites_base=True,
    conflicts=MOMENTS_APART,
)
