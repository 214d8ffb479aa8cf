"""HiRA (https://openreview.net/forum?id=TwJrTz9cRS): the weight times a low-rank matrix, number by number, is added to it.

``ΔW = W ⊙ (B A)``, of a rank up to that of W times R. A begins uniform (Kaiming's, a = sqrt(5)), B at zero; names as in peft. The
product with W has no small factors: it is formed in both passes, and nothing of its size is kept between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import HiraConfig

_TESTED = ANY - {"offload"}


def _build(config: HiraConfig) -> Adapter:
    from .layer import Hira

    return Hira(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "HIRA":
        return None
    from mt_core.adapters import targets_option

    return {
        "targets": targets_option(config, modules),
        "rank": config.get("r", 32),  # of all layers: peft 0.21 reads over its rank_pattern
        "dropout": config.get("hira_dropout") or 0.0,
    }


COMPONENT = AdapterComponent(
    name="hira",
    config=HiraConfig,
    build=_build,
    summary="the elementwise product of the weight and a low-rank matrix as the update",
    source="https://openreview.net/forum?id=TwJrTz9cRS",
    layouts=_TESTED,
    peft_options=_options,
)
