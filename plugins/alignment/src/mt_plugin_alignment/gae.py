"""Generalized advantage estimation: what each token of an answer was worth, in float64 on the host. Torch is not imported.

https://arxiv.org/abs/1506.02438; with rewards of tokens as in https://arxiv.org/abs/1909.08593. Shapes: A answers, T tokens of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .advantages import whiten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.float64]
    """(T,) a number for each token of an answer."""

LARGEST_CHANGE = 0.2
"""Bound of how far from its target a divergence moves the controller, as a share of the target."""


def token_rewards(score: float, kl_T: Tokens, *, beta: float) -> Tokens:
    """Return -β kl of each token, and the score of the answer on top of its last one, (T,)."""
    rewards_T = -beta * kl_T
    rewards_T[-1:] += score
    return rewards_T


def estimate_advantages(
    rewards: Sequence[Tokens], values: Sequence[Tokens], *, gamma: float, lam: float
) -> list[Tokens]:
    """Return A_t = Σ_l (γλ)^l δ_{t+l} of each answer, with δ_t = r_t + γ V_{t+1} - V_t, where nothing comes after the last token.

    ``values`` are V_t of the text before token t. With γ = λ = 1 they are the rewards to come less V_t, and with λ = 0 the δ_t.
    """
    import numpy as np

    rewards_AT, values_AT = _pad(rewards), _pad(values)
    after_AT = np.pad(values_AT[:, 1:], ((0, 0), (0, 1)))
    advantages_AT = rewards_AT + gamma * after_AT - values_AT  # 0 behind the end of an answer
    for place in range(advantages_AT.shape[1] - 2, -1, -1):
        advantages_AT[:, place] += gamma * lam * advantages_AT[:, place + 1]
    return [each_T[: len(own_T)].copy() for each_T, own_T in zip(advantages_AT, rewards, strict=True)]


def whiten_answers(answers: Sequence[Tokens]) -> list[Tokens]:
    """Return the numbers whitened over all tokens of all answers; see ``advantages.whiten``."""
    import numpy as np

    if not answers:
        return []
    return np.split(whiten(np.concatenate(answers)), np.cumsum([len(each_T) for each_T in answers])[:-1])


def explained_variance(values: Sequence[Tokens], returns: Sequence[Tokens]) -> float:
    """Return 1 - Var(R - V) / Var(R) over all tokens: 1 for a critic that knows, 0 for one that says the same everywhere, less for a
    worse one; 0 where all returns are the same."""
    import numpy as np

    if not sum(map(len, returns)):
        return 0.0
    every_R, every_V = np.concatenate(returns), np.concatenate(values)
    variance = every_R.var()
    return float(1 - (every_R - every_V).var() / variance) if variance > 0 else 0.0


def next_beta(beta: float, kl: float, *, target: float, horizon: float, answers: int) -> float:
    """Return β of the next iteration: larger where answers have moved further from the reference than ``target`` (nats an answer).

    https://arxiv.org/abs/1909.08593, section 2.2; ``horizon`` is in answers.
    """
    error = min(max(kl / target - 1, -LARGEST_CHANGE), LARGEST_CHANGE)
    return beta * (1 + error * answers / horizon)


def _pad(answers: Sequence[Tokens]) -> NDArray[np.float64]:
    """(A, T) with zeros behind the end of each."""
    import numpy as np

    padded_AT = np.zeros((len(answers), max(map(len, answers), default=0)))
    for row_T, each_T in zip(padded_AT, answers, strict=True):
        row_T[: len(each_T)] = each_T
    return padded_AT
