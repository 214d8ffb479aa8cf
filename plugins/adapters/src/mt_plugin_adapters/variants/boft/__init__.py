"""BOFT (https://arxiv.org/abs/2311.06243): a rotation of all inputs, made of several block-diagonal ones as an FFT is.

``W' = diag(s) W T``, ``T = (B_m … B_1)ᵀ``, ``B_i = P_i diag(R_1, …) P_iᵀ``: each factor has orthogonal blocks (Cayley of the skew
part of trained numbers) between a permutation and its inverse, the i-th of which brings together half blocks that are 2ⁱ⁻¹ apart,
so that m factors mix the inputs of 2ᵐ⁻¹ blocks. The gains ``s`` of the outputs are trained as well, as in peft and the authors'
code. It begins with no rotation and gains of 1; with one factor it is OFT and gains. Multiplicative dropout is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import BoftConfig

_TESTED = ANY - {"offload"}


def _build(config: BoftConfig) -> Adapter:
    from .layer import Boft

    return Boft(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "BOFT":
        return None
    from mt_core.adapters import targets_option

    return {
        "targets": targets_option(config, modules),
        "block_size": config.get("boft_block_size", 4) or 4,
        "blocks": config.get("boft_block_num") or None,
        "factors": config.get("boft_n_butterfly_factor", 1),
    }


COMPONENT = AdapterComponent(
    name="boft",
    config=BoftConfig,
    build=_build,
    summary="rotates the inputs by a product of sparse orthogonal matrices",
    source="https://arxiv.org/abs/2311.06243",
    layouts=_TESTED,
    peft_options=_options,
)
