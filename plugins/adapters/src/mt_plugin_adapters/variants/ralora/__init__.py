"""RaLoRA and RaLoRA-Pro (https://openreview.net/forum?id=kObvnQ6pUx): LoRA cut into blocks along the diagonal, as many as the
gradient's effective rank asks for, at the same number of parameters.

The effective rank of the gradient with respect to the weight is ``e = exp(-Σ pᵢ ln pᵢ)`` with pᵢ its singular values over their sum (Roy
and Vetterli, 2007). A layer of rank r gets ``n = 2^⌊log₂(e / r)⌋`` blocks, at least one, at most ``max_blocks``, and fewer
where inputs or outputs cannot be divided by n: block i takes the i-th of n parts of the inputs to the i-th of the outputs,
by an A of r x inputs/n and a B of outputs/n x r. Together they have the parameters of a LoRA of rank r and reach rank n r. A is
drawn as for LoRA, B is zero.

The ranks are the config's. With ``min_rank`` and ``max_rank`` they are moved between layers first (RaLoRA-Pro, equations 5 to 8), by
the importance of each weight to the loss as in GoRA: see ``rank_allocation.py``. A layer's scale stays that of the config's
rank, as by default in the code base of the authors.
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import RaloraConfig


def _build(config: RaloraConfig) -> Adapter:
    from .adapter import Ralora

    return Ralora(config)


COMPONENT = AdapterComponent(
    name="ralora",
    config=RaloraConfig,
    build=_build,
    summary="block-diagonal LoRA with a number of blocks, and if wanted a rank, that follows the gradient",
    source="https://openreview.net/forum?id=kObvnQ6pUx",
    layouts=PROBED,
    on_quantized=False,
)
