"""Where learning from rewards ends: plain gradient descent on exact expectations reaches the policy that the method has on paper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mt_plugin_alignment.advantages import advantages
from mt_plugin_alignment.kl import Estimator, estimate_kl
from mt_plugin_alignment.objectives.credit import Credit
from mt_plugin_alignment.objectives.grpo_config import GrpoConfig
from mt_plugin_alignment.policy import cispo_loss, clipped_loss, ratios

CHOICES, BETA = 8, 0.5
CLOSE = 0.02
"""Total variation."""
GENERATOR = np.random.default_rng(0)
REFERENCE = torch.tensor(GENERATOR.dirichlet(np.full(CHOICES, 2.0)))
REWARDS = torch.tensor(GENERATOR.uniform(0, 1, CHOICES))
TILTED = torch.softmax(REFERENCE.log() + REWARDS / BETA, 0)
"""π ∝ π_ref e^(R/β), where reward less β KL(π‖π_ref) is largest."""


def k3_optimum() -> Tensor:
    """π = β π_ref / (c - R), with c such that it adds up to 1: where reward less β KL(π_ref‖π) is largest."""
    low, high = float(REWARDS.max()) + 1e-9, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((BETA * REFERENCE / (middle - REWARDS)).sum()) > 1 else (low, middle)
    return BETA * REFERENCE / (low - REWARDS)


def end_of(loss: Callable[[Tensor], Tensor], *, rate: float = 0.5, steps: int = 4000) -> Tensor:
    """Return the policy at the end. ``loss`` gives what each choice costs when it is drawn, from log-probabilities of all choices."""
    table = REFERENCE.log().clone().requires_grad_()
    for _ in range(steps):
        logps = table.log_softmax(0)
        (gradient,) = torch.autograd.grad((logps.exp().detach() * loss(logps)).sum(), table)
        table = (table - rate * gradient).detach().requires_grad_()
    return table.detach().softmax(0)


def clipped(logps: Tensor, gained: Tensor) -> Tensor:
    """The loss of tokens that the policy itself drew."""
    return clipped_loss(ratios(logps, logps.detach()), gained, low=0.2, high=0.2)


def above_mean(logps: Tensor, values: Tensor) -> Tensor:
    """Values less their mean under the policy: the baseline of a group without end."""
    return values - (logps.exp() * values).sum().detach()


def in_loss(estimator: Estimator) -> Tensor:
    return end_of(
        lambda logps: clipped(logps, above_mean(logps, REWARDS)) + BETA * estimate_kl(logps, REFERENCE.log(), estimator)
    )


def in_reward(logps: Tensor) -> Tensor:
    return above_mean(logps, REWARDS - BETA * estimate_kl(logps.detach(), REFERENCE.log(), "k1"))


def distance(one: Tensor, other: Tensor) -> float:
    """Total variation."""
    return float((one - other).abs().sum() / 2)


def test_kl_in_the_reward_ends_at_the_tilted_reference() -> None:
    assert distance(end_of(lambda logps: clipped(logps, in_reward(logps))), TILTED) < CLOSE


def test_clipped_weights_end_there_too() -> None:
    def loss(logps: Tensor) -> Tensor:
        return cispo_loss(ratios(logps, logps.detach()), logps, in_reward(logps), low=1.0, high=4.0)

    assert distance(end_of(loss), TILTED) < CLOSE


def test_kl_in_the_loss_ends_there_with_k2() -> None:
    assert distance(in_loss("k2"), TILTED) < CLOSE


def test_kl_in_the_loss_ends_elsewhere_with_k3_and_at_one_choice_with_k1() -> None:
    found = in_loss("k3")
    assert distance(found, k3_optimum()) < CLOSE
    assert distance(found, TILTED) > 2 * CLOSE
    assert float(in_loss("k1").max()) > 0.99, "its gradient is 0 in expectation"


@pytest.mark.parametrize("baseline", ["group", "others", "none"])
def test_drawn_groups_point_where_the_expectation_does(baseline: str) -> None:
    """The mean of many drawn gradients is that of the expected reward, whatever the baseline; for the group's own mean (G-1)/G of it."""
    dice, groups, size = np.random.default_rng(3), 40_000, 4
    policy = REFERENCE.numpy()
    drawn_PG = dice.choice(CHOICES, (groups, size), p=policy)
    gained = advantages(REWARDS.numpy()[drawn_PG], baseline=baseline, scale="none").ravel()  # type: ignore[arg-type]
    share = np.bincount(drawn_PG.ravel(), gained, CHOICES) / gained.size
    found = share - policy * share.sum()  # Σ A ∇ log π of a softmax
    expected = policy * (REWARDS.numpy() - policy @ REWARDS.numpy())
    factor = (size - 1) / size if baseline == "group" else 1.0
    assert found == pytest.approx(factor * expected, abs=4e-3)
    assert np.abs(expected).max() > 0.02


@pytest.mark.parametrize(("mean", "share"), [("answer", 3.0), ("token", 1.0), ("constant", 1.0), ("prompt", 1.0)])
def test_a_token_of_a_short_wrong_answer_counts_as_the_mean_says(mean: str, share: float) -> None:
    """Wrong answers of 4 and 12 tokens: 3 to 1 where answers count alike, so that long ones are held back less."""
    config = GrpoConfig(group=4, mean=mean, scale="none", max_new_tokens=16)  # type: ignore[arg-type]
    scores = [1.0, 1.0, 0.0, 0.0]
    records = [
        {"prompt": [1], "group": 0, "ids": [2] * length, "finish": "eos", "rewards": {"one": score}}
        for length, score in zip((6, 6, 4, 12), scores, strict=True)
    ]
    credit = Credit(records, {"one": 1.0}, config)
    gained, weights_A = [each[0] for each in credit.tokens()], credit.weights()[0]
    assert gained[2] == gained[3] < 0
    assert gained[2] * weights_A[2] / (gained[3] * weights_A[3]) == pytest.approx(share)
