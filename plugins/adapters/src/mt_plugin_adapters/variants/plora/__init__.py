"""PLoRA, or PeriodicLoRA (https://arxiv.org/abs/2402.16141): LoRA in stages, so that the sum of what they learn has a higher rank.

After every stage ``W`` becomes ``W + s·BA``, and LoRA begins anew: A is drawn again, B is zero, and so are the optimizer's moments. The
output does not change by that. The paper's learning rate begins anew, too: ``--schedule cosine-restarts`` or ``relora`` with as many
steps does that.

With ``momentum`` m (the paper's name) a stage is merged in part: ``W`` becomes ``W + m s·BA``, A becomes ``(1 - m) A`` and B ``(1 - m) B``,
and the moments begin anew, as in a public training code for it (https://github.com/CCCarloooo/FastChat). ``m + (1 - m)²`` of the
update is left by that: each merge takes ``m (1 - m)`` of it back, 9 % at 0.1, no more than 25 %.

In half precision the frozen weight is rounded after every stage, as there is no better copy of it.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import PloraConfig

_TESTED = ANY - {"offload"}

MOMENTS_APART = tuple(
    f"optimizer:{name}"
    for name in (
        *("adamw-8bit", "paged-adamw-8bit", "torchao-adamw-8bit", "torchao-adamw-4bit", "torchao-adamw-fp8"),
        *("muon", "soap", "galore", "galore-8bit", "galore-adafactor", "apollo"),
        "schedule-free-adamw",
    )
)
"""Optimizers whose moments cannot begin anew: codes of a few bits (0 is no 0), state outside the optimizer, averaged weights."""


def _build(config: PloraConfig) -> Adapter:
    from .adapter import Plora

    return Plora(config)


COMPONENT = AdapterComponent(
    name="plora",
    config=PloraConfig,
    build=_build,
    summary="LoRA in stages: after each stage it is merged into the weight and initialised again, or merged in part",
    source="https://arxiv.org/abs/2402.16141",
    layouts=_TESTED,
    rewrites_base=True,
    conflicts=MOMENTS_APART,
)
