"""OFT (https://arxiv.org/abs/2306.07280, https://arxiv.org/abs/2506.19847): the inputs are rotated, block by block.

``W' = W Rᵀ`` with R block-diagonal and orthogonal: ``R = (I - Q)(I + Q)⁻¹`` (Cayley) of a skew-symmetric Q, whose numbers above
the diagonal are trained and begin at zero. Lengths of the weight's rows, and angles between them, stay as they are. With
``neumann_terms`` the inverse is a sum of powers, as in the second paper, and R orthogonal only nearly: peft's default is 5. The
constrained form (COFT) and multiplicative dropout are not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mt_core import ANY, Adapter, AdapterComponent

from .config import OftConfig

_TESTED = ANY - {"offload"}


def _build(config: OftConfig) -> Adapter:
    from .layer import Oft

    return Oft(config)


def _options(config: Mapping[str, Any], modules: Sequence[str]) -> dict[str, Any] | None:
    if config.get("peft_type") != "OFT":
        return None
    from mt_core.adapters import targets_option

    return {
        "targets": targets_option(config, modules),
        "block_size": config.get("oft_block_size", 32) or None,
        "blocks": config.get("r") or None,
        "shared_blocks": bool(config.get("block_share")),
        "neumann_terms": config.get("num_cayley_neumann_terms", 5) if config.get("use_cayley_neumann", True) else None,
    }


COMPONENT = AdapterComponent(
    name="oft",
    config=OftConfig,
    build=_build,
    summary="rotates the inputs, block by block",
    source="https://arxiv.org/abs/2306.07280",
    layouts=_TESTED,
    peft_options=_options,
)
