"""RidgeLoRA (https://openreview.net/forum?id=0RF80tUWuv): a diagonal and a low-rank matrix before the weight, not beside it.

``W' = W (λ Σ + s · B A)`` with a trained diagonal Σ (the ridge), its trained intensity λ, and a pair on the inputs: ``lora_A`` (R, E),
``lora_B`` (E, R). It begins as in the paper's algorithm 1: λ = 1; the first R of Σ are the sigmoids of normal numbers, whose mean and
deviation it leaves open, and the rest 1; A is normal with variance 1 / R; B is what is missing from the identity times the pseudo-inverse
of A. That projects what is missing on the rows of A, so that, other than the paper says of it, the first output is not quite the base's.

``squash`` is β of the paper's second term of the loss, the mean nuclear norm of ``λ Σ + s · B A - I`` over all layers; negative values
reward updates of high rank. It costs a singular value decomposition of an E x E matrix for every layer and step.
"""

from __future__ import annotations

from mt_core import ANY, Adapter, AdapterComponent

from .config import RidgeLoraConfig

_TESTED = ANY - {"offload"}


def _build(config: RidgeLoraConfig) -> Adapter:
    from .adapter import RidgeLora

    return RidgeLora(config)


COMPONENT = AdapterComponent(
    name="ridgelora",
    config=RidgeLoraConfig,
    build=_build,
    summary="a trained diagonal and a low-rank pair on the inputs of the weight",
    source="https://openreview.net/forum?id=0RF80tUWuv",
    layouts=_TESTED,
    exact_at_init=False,
)
