"""LoRA-FA (https://arxiv.org/abs/2308.03303): A stays as it was drawn, B is trained; no moments are kept for A."""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent, LowRankConfig

_TESTED = ANY - {"offload"}


def _build(config: LowRankConfig) -> Adapter:
    from .layer import LoraFA

    return LoraFA(config)


COMPONENT = AdapterComponent(
    name="lora-fa",
    config=LowRankConfig,
    build=_build,
    summary="LoRA with A frozen at its first values",
    source="https://arxiv.org/abs/2308.03303",
    layouts=_TESTED,
)
