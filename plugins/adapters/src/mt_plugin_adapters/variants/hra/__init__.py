"""HRA (https://arxiv.org/abs/2405.17484): the inputs are reflected R times before the frozen weight.

``W' = W H_1 … H_R``, ``H_i = I - 2 u_i u_iᵀ / ‖u_i‖²``. The vectors begin in equal pairs (uniform, Kaiming's with a = sqrt(5)), whose
reflections undo each other, so that R is even. The paper's penalty on vectors that are not orthogonal is not here (its λ = 0, as in
peft), and neither is its orthogonalised form: equal pairs have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import HraConfig

_TESTED = ANY - {"offload"}


def _build(config: HraConfig) -> Adapter:
    from .layer import Hra

    return Hra(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "HRA":
        return None
    from mt_core.adapters import targets_option

    return {"targets": targets_option(config, modules), "rank": config.get("r", 8)}


COMPONENT = AdapterComponent(
    name="hra",
    config=HraConfig,
    build=_build,
    summary="a chain of trained reflections of the inputs",
    source="https://arxiv.org/abs/2405.17484",
    layouts=_TESTED,
    peft_options=_options,
)
