"""(IA)³ (https://arxiv.org/abs/2205.05638): a trained gain for each key, value and inner activation of the feed-forward.

``l ⊙ (W x)`` for keys and values, ``W (l ⊙ x)`` for the projection that leaves the feed-forward; all gains begin at 1. Merged into the
weight they cost nothing. ``ia3_l`` is a vector, so that weight decay leaves it alone; in peft's files it has a second dimension of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import Ia3Config

_TESTED = ANY - {"offload"}


def _build(config: Ia3Config) -> Adapter:
    from .layer import Ia3

    return Ia3(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "IA3":
        return None
    from mt_core.adapters import targets_option

    inner = targets_option({"target_modules": config.get("feedforward_modules")}, ())
    return {"targets": targets_option(config, modules), "feedforward": inner}


COMPONENT = AdapterComponent(
    name="ia3",
    config=Ia3Config,
    build=_build,
    summary="trained gains of keys, values and the feed-forward's inner activations",
    source="https://arxiv.org/abs/2205.05638",
    layouts=_TESTED,
    peft_options=_options,
)
