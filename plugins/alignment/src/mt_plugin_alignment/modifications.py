"""Modifications that go with any loss of pairs: LD-DPO before it, WPO behind it.

Shapes: P pairs, A answers (chosen, rejected, chosen, rejected … of the pairs in order), N trained tokens of all answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .pairs import Pairs, known

if TYPE_CHECKING:
    from torch import Tensor


def is_in_tail(places_N: Tensor, answers_N: Tensor, lengths_A: Tensor, chosen_P: Tensor) -> Tensor:
    """Return which tokens stand behind the length of the shorter answer of their pair, (N,) bool.

    ``places`` count the tokens of an answer from 0, ``answers`` are numbers of answers, ``lengths`` their tokens, ``chosen`` the
    numbers of chosen answers, each with the rejected one behind it.
    """
    shared_A = lengths_A.clone()
    shared_A[chosen_P] = shared_A[chosen_P + 1] = lengths_A[chosen_P].minimum(lengths_A[chosen_P + 1])
    return places_N >= shared_A[answers_N]


def weaken_tails(pairs: Pairs, alpha: float) -> Pairs:
    """Return pairs whose log-probabilities count what stands behind the shorter answer's length by α only.

    LD-DPO (https://arxiv.org/abs/2409.06411): l = l_shared + α l_tail, for the model and the reference alike, as in TRL; α = 1 changes
    nothing. Means of log-probabilities (SimPO, ORPO) divide by what the tokens count then, so that one likelihood for every token gives
    answers of any length one mean; means of log-ratios (IPO, DPO on means) divide by all tokens, as in TRL. Raises ``UsageError`` for
    pairs without tails.
    """
    less, shared = 1 - alpha, pairs.chosen_lengths.minimum(pairs.rejected_lengths)
    changed = replace(
        pairs,
        chosen=pairs.chosen - less * known(pairs.chosen_tail, "chosen_tail"),
        rejected=pairs.rejected - less * known(pairs.rejected_tail, "rejected_tail"),
        chosen_counts=shared + alpha * (pairs.chosen_lengths - shared),
        rejected_counts=shared + alpha * (pairs.rejected_lengths - shared),
    )
    if pairs.reference_chosen is None or pairs.reference_rejected is None:
        return changed
    return replace(
        changed,
        reference_chosen=pairs.reference_chosen - less * known(pairs.reference_chosen_tail, "reference_chosen_tail"),
        reference_rejected=pairs.reference_rejected
        - less * known(pairs.reference_rejected_tail, "reference_rejected_tail"),
    )


def answer_weights(logp_A: Tensor, log_squares_A: Tensor, lengths_A: Tensor) -> Tensor:
    """Return how likely each answer is for the model beside what it would draw itself, (A,), without gradient.

    WPO (https://arxiv.org/abs/2406.11827, equation 2 with sampled alignment): exp of the mean over an answer's tokens of
    log p_t - log Σ_v p_v². ``logp`` and ``log_squares`` are sums over the tokens of an answer of the two terms.
    """
    return ((logp_A - log_squares_A) / lengths_A).exp().detach()


def weigh(loss_P: Tensor, pairs: Pairs) -> Tensor:
    """Return losses times the weights of both answers, as WPO does. Raises ``UsageError`` for pairs without weights."""
    chosen, rejected = known(pairs.chosen_weights, "chosen_weights"), known(pairs.rejected_weights, "rejected_weights")
    return loss_P * chosen.detach() * rejected.detach()
