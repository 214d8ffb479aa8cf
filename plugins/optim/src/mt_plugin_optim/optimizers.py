"""Every optimizer as data: its options, where it comes from, and the layouts that its tests cover."""

from __future__ import annotations

from mt_core import ZERO, OptimizerComponent

from .builds import from_torch, rule
from .options import LionConfig, SgdConfig

OPTIMIZERS = (
    OptimizerComponent(
        name="sgd",
        config=SgdConfig,
        build=from_torch("SGD", foreach=False),
        form="elementwise",
        layouts=ZERO,
        summary="stochastic gradient descent, with momentum where asked for",
        source="https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html",
    ),
    OptimizerComponent(
        name="lion",
        config=LionConfig,
        build=rule("lion", "Lion"),
        form="elementwise",
        layouts=ZERO,
        summary="the sign of a momentum: half of AdamW's state",
        source="https://arxiv.org/abs/2302.06675",
    ),
)
