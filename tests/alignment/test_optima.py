"""Where losses end: plain gradient descent reaches the optimum that the formula has on paper.

Two answers of one token each, y and z; y is the chosen one in a share p of the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_plugin_alignment import Pairs, reward_losses
from mt_plugin_alignment.offers.losses import LOSSES

COMPONENTS = {each.name: each for each in LOSSES}
SHARE, BETA, RATE = 0.8, 0.5, 0.1
"""p, β, and the rate ε at which labels are wrong."""
LOGIT = math.log(SHARE / (1 - SHARE))
SMOOTHED = math.log((1 - RATE) / RATE)
CLOSE = 1e-6

Table = Callable[[Tensor], Pairs]


def policy(table: Tensor) -> Pairs:
    """Pairs (y, z) and (z, y) of a softmax over two logits; the reference is uniform."""
    logp, one = table.log_softmax(0), torch.ones(2, dtype=torch.float64)
    reference = torch.full_like(one, math.log(0.5))
    return Pairs(logp, logp.flip(0), one, one, reference, reference)


def ratios(table: Tensor) -> Pairs:
    """The same pairs with two log-ratios that are free, as those of two answers among very many are."""
    one = torch.ones_like(table)
    return Pairs(table, table.flip(0), one, one, 0 * one, 0 * one)


def descend(expected: Callable[[Tensor], Tensor], *, rate: float, steps: int = 1500) -> Tensor:
    """Return the two numbers at which an expected loss ends."""
    table = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(expected(table), table)
        table = (table - rate * gradient).detach().requires_grad_()
    return table.detach()


def end_of(name: str, share: float = SHARE, of: Table = policy, *, rate: float = 2.0, **options: Any) -> Pairs:
    """Return the pairs at the end; y is chosen in ``share`` of them."""
    component = COMPONENTS[name]
    loss = component.build(component.config(**{"beta": BETA} | options))
    weights = torch.tensor([share, 1 - share], dtype=torch.float64)
    return of(descend(lambda table: (weights * loss(of(table))).sum(), rate=rate))


def margin_of(name: str, share: float = SHARE, **options: Any) -> float:
    """Return r_y - r_z at the end."""
    return float(end_of(name, share, **options).margin[0])


@pytest.mark.parametrize("name", ["sigmoid", "sigmoid-norm", "cpo"])
def test_dpo_and_cpo_end_at_the_preferences(name: str) -> None:
    assert margin_of(name) == pytest.approx(LOGIT / BETA, rel=CLOSE)


@pytest.mark.parametrize("length", ["mean", "sum"])
def test_ipo_ends_at_a_finite_margin_even_for_certain_labels(length: str) -> None:
    found = [margin_of("ipo", share, rate=0.2, length=length) for share in (SHARE, 1.0)]
    assert found == pytest.approx([(2 * SHARE - 1) / (2 * BETA), 1 / (2 * BETA)], rel=CLOSE)


def test_smoothed_dpo_ends_where_labels_are_as_certain_as_it_says() -> None:
    assert margin_of("sigmoid", 1.0, label_smoothing=RATE) == pytest.approx(SMOOTHED / BETA, rel=CLOSE)


def test_robust_dpo_ends_under_flipped_labels_where_dpo_ends_under_right_ones() -> None:
    flipped = SHARE * (1 - RATE) + (1 - SHARE) * RATE
    assert margin_of("robust", flipped, label_smoothing=RATE) == pytest.approx(LOGIT / BETA, rel=CLOSE)
    assert margin_of("sigmoid", flipped) < 0.8 * LOGIT / BETA, "DPO itself does not"


def test_exo_ends_at_its_smoothed_labels() -> None:
    assert margin_of("exo-pair", 1.0, label_smoothing=RATE) == pytest.approx(SMOOTHED / BETA, rel=CLOSE)


def test_the_hinge_ends_at_a_margin_of_one() -> None:
    assert margin_of("hinge", rate=0.01) == pytest.approx(1 / BETA, abs=0.02)


@pytest.mark.parametrize(
    ("options", "slope"),
    [
        ({"divergence": "forward-kl"}, lambda u: -1 / u),
        ({"divergence": "js"}, lambda u: math.log(2 * u / (1 + u))),
        ({"divergence": "alpha", "divergence_alpha": 0.5}, lambda u: -2 * (u**-0.5)),
        ({"divergence": "alpha", "divergence_alpha": 0.25}, lambda u: -4 / 3 * u**-0.75),
    ],
    ids=["forward-kl", "js", "alpha 0.5", "alpha 0.25"],
)
def test_under_another_divergence_its_slopes_end_at_the_preferences(
    options: dict[str, Any], slope: Callable[[float], float]
) -> None:
    """Theorem 1 of f-DPO: the reward is β f'(π/π_ref), up to a constant; f' as in its table, divided through for α."""
    pairs = end_of("sigmoid", **options)
    y, z = (float(2 * each.exp()) for each in pairs.chosen)
    assert slope(y) - slope(z) == pytest.approx(LOGIT / BETA, rel=CLOSE)


@pytest.mark.parametrize(
    ("name", "chosen", "rejected", "rate"),
    [
        ("bco-pair", LOGIT / BETA, -LOGIT / BETA, 2.0),
        ("nca-pair", math.log(2 * SHARE) / BETA, math.log(2 * (1 - SHARE)) / BETA, 2.0),
        ("sppo-hard", (2 * SHARE - 1) / (2 * BETA), (1 - 2 * SHARE) / (2 * BETA), 0.2),
    ],
)
def test_losses_of_single_answers_end_at_their_own_log_ratios(
    name: str, chosen: float, rejected: float, rate: float
) -> None:
    """Of free log-ratios x: BCO -p log σ(x) - (1-p) log σ(-x); NCA -p log σ(x) - ½ log σ(-x); SPPO p (x-t)² + (1-p) (x+t)²."""
    found = end_of(name, of=ratios, rate=rate)
    assert found.chosen_reward.tolist() == pytest.approx([chosen, rejected], rel=CLOSE)


def test_simpo_ends_beyond_the_preferences_by_its_margin() -> None:
    """-p log σ(x-γ) - (1-p) log σ(-x-γ) is least where (1-p) u² - (2p-1) e^γ u - p = 0, u = e^x."""
    gamma = 0.4
    found = BETA * margin_of("simpo", gamma=gamma)
    middle = (2 * SHARE - 1) * math.exp(gamma)
    u = (middle + math.sqrt(middle**2 + 4 * SHARE * (1 - SHARE))) / (2 * (1 - SHARE))
    assert found == pytest.approx(math.log(u), rel=CLOSE)
    assert found > LOGIT


def test_orpo_ends_at_the_preferences_whatever_its_weight() -> None:
    """Where there are two answers, the odds of one are π_y/π_z, and their ratio the square of that."""
    for beta in (0.25, 0.5):
        assert margin_of("orpo", beta=beta, rate=1.0) == pytest.approx(LOGIT / 2, rel=CLOSE)


def end_of_scores(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    weights = torch.tensor([SHARE, 1 - SHARE], dtype=torch.float64)
    return descend(lambda scores: (weights * loss(scores, scores.flip(0))).sum(), rate=1.0)


def test_a_reward_model_ends_at_the_preferences_and_centred_around_0() -> None:
    found = end_of_scores(reward_losses.bradley_terry)
    assert float(found[0] - found[1]) == pytest.approx(LOGIT, rel=CLOSE)

    def centred(chosen: Tensor, rejected: Tensor) -> Tensor:
        one_sided = (
            reward_losses.bradley_terry(chosen, rejected) + 0.2 * chosen
        )  # which would move both scores for ever
        return one_sided + 0.05 * reward_losses.centring(chosen, rejected)

    found = end_of_scores(centred)
    assert float(found.sum()) == pytest.approx(-0.2 / (4 * 0.05), rel=CLOSE), (
        "0.1 of each score against 2·0.05 of their sum"
    )


def test_margins_of_a_reward_model_count_as_its_papers_say() -> None:
    margins = torch.tensor([1.0, 3.0], dtype=torch.float64)
    found = end_of_scores(lambda chosen, rejected: reward_losses.scaled_bradley_terry(chosen, rejected, margins))
    assert float(found[0] - found[1]) == pytest.approx(math.log(SHARE / (3 * (1 - SHARE))), rel=CLOSE)


def test_scores_end_at_their_mean() -> None:
    targets = torch.tensor([1.0, 4.0], dtype=torch.float64)
    weights = torch.tensor([SHARE, 1 - SHARE], dtype=torch.float64)
    found = descend(
        lambda scores: (weights * reward_losses.squared_error(scores[0].expand(2), targets)).sum(), rate=0.3
    )
    assert float(found[0]) == pytest.approx(SHARE * 1 + (1 - SHARE) * 4, rel=CLOSE)
