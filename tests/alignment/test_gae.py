"""Advantages of tokens: the sum of the definition, special cases of γ and λ, and the form that verl and TRL compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mt_plugin_alignment.gae import (
    estimate_advantages,
    explained_variance,
    next_beta,
    token_rewards,
    whiten_answers,
)

Tokens = NDArray[np.float64]
LENGTHS = (7, 1, 4, 12)


def drawn(seed: int) -> list[Tokens]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=length) for length in LENGTHS]


def by_definition(rewards_T: Tokens, values_T: Tokens, gamma: float, lam: float) -> list[float]:
    """A_t = Σ_l (γλ)^l (r_{t+l} + γ V_{t+l+1} - V_{t+l}), each added up by itself."""
    last, after = len(rewards_T), [*values_T.tolist(), 0.0]
    return [
        math.fsum(
            (gamma * lam) ** (at - place) * (rewards_T[at] + gamma * after[at + 1] - after[at])
            for at in range(place, last)
        )
        for place in range(last)
    ]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.97, 0.0)])
def test_advantages_are_the_sum_of_the_definition(gamma: float, lam: float) -> None:
    rewards, values = drawn(0), drawn(1)
    found = estimate_advantages(rewards, values, gamma=gamma, lam=lam)
    for own, rewards_T, values_T in zip(found, rewards, values, strict=True):
        assert own.tolist() == pytest.approx(by_definition(rewards_T, values_T, gamma, lam), rel=1e-12, abs=1e-14)


def test_without_discounts_they_are_all_rewards_to_come_less_the_value() -> None:
    rewards, values = drawn(2), drawn(3)
    for own, rewards_T, values_T in zip(
        estimate_advantages(rewards, values, gamma=1, lam=1), rewards, values, strict=True
    ):
        to_come = np.array([rewards_T[place:].sum() for place in range(len(rewards_T))])
        assert own == pytest.approx(to_come - values_T, rel=1e-12, abs=1e-14)


def test_with_lambda_0_they_are_the_errors_of_the_next_value() -> None:
    rewards, values = drawn(4), drawn(5)
    for own, rewards_T, values_T in zip(
        estimate_advantages(rewards, values, gamma=0.9, lam=0), rewards, values, strict=True
    ):
        following = np.append(values_T[1:], 0.0)
        assert own == pytest.approx(rewards_T + 0.9 * following - values_T, rel=1e-12)


def test_an_answer_has_the_same_advantages_beside_any_others() -> None:
    rewards, values = drawn(6), drawn(7)
    together = estimate_advantages(rewards, values, gamma=0.99, lam=0.95)
    for number, own in enumerate(together):
        (alone,) = estimate_advantages([rewards[number]], [values[number]], gamma=0.99, lam=0.95)
        assert own.tolist() == alone.tolist()


def test_what_was_given_stays_as_it_was() -> None:
    rewards, kl = drawn(8), np.ones(3)
    before = [each.copy() for each in rewards]
    estimate_advantages(rewards, rewards, gamma=1, lam=0.95)
    whiten_answers(rewards)
    token_rewards(5.0, kl, beta=0.5)
    assert all(np.array_equal(one, other) for one, other in zip(rewards, before, strict=True))
    assert kl.tolist() == [1, 1, 1]


def test_the_score_is_on_the_last_token_and_each_token_pays_for_its_divergence() -> None:
    assert token_rewards(2.0, np.array([0.5, -1.0, 3.0]), beta=0.1) == pytest.approx([-0.05, 0.1, 1.7], rel=1e-15)
    assert token_rewards(2.0, np.array([0.5]), beta=0.0).tolist() == [2.0]
    assert token_rewards(2.0, np.empty(0), beta=0.1).tolist() == []


def masked_form(
    rewards: list[Tokens], values: list[Tokens], gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(A, T) whitened advantages, returns and the mask: the recursion over padded rows that verl (``compute_gae_advantage_return``) and
    TRL's PPOTrainer compute, with the whitening of both: unbiased variance, and 1e-8 below the root."""
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(each)) for each in rewards], batch_first=True).double()
    rewards_AT, values_AT = (
        torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in given], batch_first=True)
        for given in (rewards, values)
    )
    following = carried = torch.zeros(len(rewards), dtype=torch.float64)
    reversed_ = []
    for place in reversed(range(rewards_AT.shape[1])):
        real = mask[:, place]
        error = rewards_AT[:, place] + gamma * following - values_AT[:, place]
        carried = (error + gamma * lam * carried) * real + (1 - real) * carried
        following = values_AT[:, place] * real + (1 - real) * following
        reversed_.append(carried)
    advantages_AT = torch.stack(reversed_[::-1], 1)
    returns_AT = advantages_AT + values_AT
    count = mask.sum()
    mean = (advantages_AT * mask).sum() / count
    variance = ((advantages_AT - mean).square() * mask).sum() / count * count / (count - 1)
    return (advantages_AT - mean) * torch.rsqrt(variance + 1e-8), returns_AT, mask.bool()


def test_whitened_advantages_and_returns_are_those_of_verl_and_trl() -> None:
    rewards, values = drawn(9), drawn(10)
    advantages_AT, returns_AT, mask = masked_form(rewards, values, 0.98, 0.9)
    own = estimate_advantages(rewards, values, gamma=0.98, lam=0.9)
    whitened = np.concatenate(whiten_answers(own))
    returns = np.concatenate([gained + value for gained, value in zip(own, values, strict=True)])
    assert whitened == pytest.approx(advantages_AT[mask].numpy(), rel=1e-11, abs=1e-13)
    assert returns == pytest.approx(returns_AT[mask].numpy(), rel=1e-11, abs=1e-13)
    assert whitened.mean() == pytest.approx(0, abs=1e-14)
    assert whitened.var(ddof=1) == pytest.approx(1, abs=1e-7)


def test_nothing_to_compare_with_is_nothing_gained() -> None:
    assert [each.tolist() for each in whiten_answers([np.array([3.0])])] == [[0.0]]
    assert [each.tolist() for each in whiten_answers([np.full(2, 4.0), np.full(1, 4.0)])] == [[0.0, 0.0], [0.0]]
    assert whiten_answers([]) == estimate_advantages([], [], gamma=1, lam=1) == []


def test_explained_variance_is_that_of_the_residual() -> None:
    returns = drawn(11)
    every = np.concatenate(returns)
    assert explained_variance(returns, returns) == 1
    assert explained_variance([each + 7 for each in returns], returns) == pytest.approx(1)  # a shift is no variance
    assert explained_variance([np.zeros_like(each) for each in returns], returns) == pytest.approx(0, abs=1e-15)
    values = drawn(12)
    expected = 1 - np.var(every - np.concatenate(values)) / np.var(every)
    assert explained_variance(values, returns) == pytest.approx(expected, rel=1e-12)
    assert explained_variance(values, [np.ones_like(each) for each in returns]) == 0
    assert explained_variance([], []) == 0


def test_beta_grows_beyond_the_target_and_falls_below_it_by_bounded_shares() -> None:
    def after(kl: float) -> float:
        return next_beta(0.1, kl, target=6.0, horizon=10_000, answers=256)

    assert after(6.0) == 0.1
    assert after(6.6) == pytest.approx(0.1 * (1 + 0.1 * 256 / 10_000), rel=1e-12)
    assert after(60.0) == after(7.3) == pytest.approx(0.1 * (1 + 0.2 * 256 / 10_000), rel=1e-12)
    assert after(-1.0) == after(0.0) == pytest.approx(0.1 * (1 - 0.2 * 256 / 10_000), rel=1e-12)
