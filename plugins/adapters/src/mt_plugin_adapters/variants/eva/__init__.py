"""EVA (https://arxiv.org/abs/2410.07170): LoRA whose A begins as the directions that a layer's inputs vary most in, and whose
ranks are given out by how much of the inputs these explain.

``X = U S Vᵀ`` of all inputs of a layer; ``A = V_rᵀ``, ``B = 0``. They are the eigenvectors of the mean of x xᵀ, which is
exact over all rows and ranks where the paper updates a decomposition from batch to batch. The mean of the inputs is not taken off,
as in the paper's decomposition (peft's takes it off). Each layer offers ``rho`` times its rank of directions, with
their shares of the sum of all squares; the largest shares get the ranks of all layers together. A layer that gets
none stays as it is. The scale stays that of the config's rank (peft: ``adjust_scaling_factors``).
"""

from __future__ import annotations

from mt_core import Adapter, AdapterComponent

from ...probed_config import PROBED
from .config import EvaConfig


def _build(config: EvaConfig) -> Adapter:
    from .adapter import Eva

    return Eva(config)


COMPONENT = AdapterComponent(
    name="eva",
    config=EvaConfig,
    build=_build,
    summary="LoRA initialised with the principal directions of the inputs, with higher ranks where these explain more",
    source="https://arxiv.org/abs/2410.07170",
    layouts=PROBED,
)
