"""How far a policy is from its reference, estimated from the tokens that it drew (http://joschu.net/blog/kl-approx.html).

Shapes: n tokens. Torch is imported for type checkers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]
MAX_LOG_RATIO, MAX_K3 = 20.0, 10.0
"""Bounds of a log-ratio before its exponential, and of k3, as verl has them."""


def estimate_kl(logps_n: Tensor, reference_n: Tensor, estimator: Estimator) -> Tensor:
    """Return an estimate for each token, (n,): k1 = log π - log π_ref, k2 = ½ k1², k3 = e^(-k1) - 1 + k1.

    As a loss, of tokens that the policy drew, k2 has the gradient of KL(π‖π_ref), k3 that of KL(π_ref‖π), and that of k1 is 0 in
    expectation. As a cost in the reward, k1 has that of KL(π‖π_ref).
    """
    apart_n = logps_n - reference_n
    if estimator == "k1":
        return apart_n
    if estimator == "k2":
        return apart_n.square() / 2
    apart_n = apart_n.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-apart_n).exp() - 1 + apart_n).clamp(-MAX_K3, MAX_K3)
