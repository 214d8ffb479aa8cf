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
    from mt_core.adapters import names_option, targets_option

    given = config.get("feedforward_modules") or []
    if not isinstance(given, str):  # peft asks how a name ends, wherever its parts begin
        given = [name for name in modules if name.endswith(tuple(map(str, given)))]
    return {
        "targets": targets_option(config, modules),
        "feedforward": names_option(given, modules) if given else [],
    }


COMPONENT = AdapterComponent(
    name="ia3",
    config=Ia3Config,
    build=_build,
    summary="trained gains of keys, values and the feed-forward's inner activations",
    source="https://arxiv.org/abs/2205.05638",
    layouts=_TESTED,
    peft_options=_options,
)
