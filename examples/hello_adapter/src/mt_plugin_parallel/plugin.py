"""Entry point: says what is offered, and what can be said of it. Every command imports it, so it imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import ZERO, Adapter, AdapterComponent, TargetConfig, hookimpl


class ParallelConfig(TargetConfig):
    """The base class has ``targets`` and ``exclude``."""

    width: int = Field(8, gt=0, le=65_536, description="inner units of each adapter")
    scale: float = Field(4.0, gt=0, description="what the adapter's output is multiplied by")


def _build(config: ParallelConfig) -> Adapter:
    from .layer import Parallel  # torch loads here, when a run has chosen this adapter

    return Parallel(config)


@hookimpl
def mt_adapters() -> list[AdapterComponent]:
    return [
        AdapterComponent(
            name="parallel",
            config=ParallelConfig,
            build=_build,
            summary="a small network with ReLU beside each projection",
            source="https://arxiv.org/abs/2110.04366",
            layouts=ZERO | {"pipeline"},
            mergeable=False,
        )
    ]
