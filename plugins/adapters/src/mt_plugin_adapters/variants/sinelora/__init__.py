"""SineLoRA (https://arxiv.org/abs/2403.19243): the sine of a low-rank matrix, number by number, has a high rank.

``ΔW = s · sin(ω B A) / g``: the sine is of the weights, not of the output, so that the layer stays linear in x and merges. A begins
uniform (Kaiming's, a = sqrt(5)), B at zero. The gain g is by default the square root of the inputs, which keeps the size of what is added
independent of the width. The sine has no small factors: it is formed in both passes, and nothing of its size is kept between them.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import SineLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: SineLoraConfig) -> Adapter:
    from .layer import SineLora

    return SineLora(config)


COMPONENT = AdapterComponent(
    name="sinelora",
    config=SineLoraConfig,
    build=_build,
    summary="the elementwise sine of a low-rank matrix as the update",
    source="https://arxiv.org/abs/2403.19243",
    layouts=_TESTED,
)
