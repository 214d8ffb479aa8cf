"""VeRA (https://arxiv.org/abs/2310.11454): ``W x + b ⊙ (B (d ⊙ (A x)))``, with A and B random, frozen and the same everywhere.

Each layer trains the two vectors alone: d, of the rank, begins at ``d_initial``; b, of the outputs, at zero. A and B have the size
of the largest target, and a layer takes the first columns and rows that it needs, as peft does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import VeraConfig

_TESTED = ANY - {"offload"}


def _build(config: VeraConfig) -> Adapter:
    from .layer import Vera

    return Vera(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "VERA":
        return None
    from mt_core.adapters import targets_option

    drawn = config.get("save_projection") is False
    return {
        "targets": targets_option(config, modules),
        "projection_seed": config.get("projection_prng_key", 0) if drawn else None,
        "rank": config.get("r", 256),
        "d_initial": config.get("d_initial", 0.1),
        "dropout": config.get("vera_dropout", 0.0),
    }


COMPONENT = AdapterComponent(
    name="vera",
    config=VeraConfig,
    build=_build,
    summary="two trained vectors in each layer, around random matrices that all layers share",
    source="https://arxiv.org/abs/2310.11454",
    layouts=_TESTED,
    peft_options=_options,
)
