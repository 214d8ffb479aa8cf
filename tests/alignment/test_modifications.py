"""LD-DPO and WPO beside any loss; sorts and labels. Their numbers beside TRL are in test_trl.py."""

from __future__ import annotations

import math

import pytest
import torch

from mt_core import UsageError
from mt_plugin_alignment import Pairs, labelled, transport
from mt_plugin_alignment.losses.orpo import Orpo, OrpoConfig
from mt_plugin_alignment.losses.simpo import Simpo, SimpoConfig
from mt_plugin_alignment.modifications import answer_weights, is_in_tail, weaken_tails, weigh

ONE = torch.ones(1)


def pairs() -> Pairs:
    """A chosen answer of three tokens, -1 each, beside one of two tokens, -2 each."""
    return Pairs(
        chosen=-3 * ONE,
        rejected=-4 * ONE,
        chosen_lengths=3 * ONE,
        rejected_lengths=2 * ONE,
        reference_chosen=-6 * ONE,
        reference_rejected=-4 * ONE,
        chosen_tail=-1 * ONE,
        rejected_tail=0 * ONE,
        reference_chosen_tail=-2 * ONE,
        reference_rejected_tail=0 * ONE,
    )


def test_tokens_behind_the_shorter_answers_length_are_its_tail() -> None:
    lengths = torch.tensor([2, 4, 3, 1])
    places = torch.tensor([0, 1, 0, 1, 2, 3, 0, 1, 2, 0])
    answers = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2, 3])
    assert is_in_tail(places, answers, lengths, torch.tensor([0, 2])).int().tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(("alpha", "reward"), [(1.0, 3.0), (0.5, 2.5), (0.0, 2.0)])
def test_alpha_says_how_much_of_the_tail_counts_for_both_models(alpha: float, reward: float) -> None:
    found = weaken_tails(pairs(), alpha)
    assert found.chosen_reward.item() == pytest.approx(reward)
    assert found.rejected_reward.item() == 0
    assert found.chosen_lengths.item() == 3, "means of log-ratios are over all tokens, as in TRL"


def test_tails_need_no_reference_and_are_asked_for() -> None:
    given = pairs()
    plain = Pairs(given.chosen, given.rejected, ONE, ONE, chosen_tail=given.chosen_tail, rejected_tail=0 * ONE)
    assert weaken_tails(plain, 0.0).chosen.item() == -2
    with pytest.raises(UsageError, match=r"Pairs\.chosen_tail is None"):
        weaken_tails(Pairs(given.chosen, given.rejected, ONE, ONE), 0.5)


@pytest.mark.parametrize("alpha", [1.0, 0.4, 0.0])
def test_answers_of_the_same_likelihood_by_token_have_the_same_mean_whatever_their_lengths(alpha: float) -> None:
    """SimPO and ORPO compare means: a tail that counts less may not make the longer answer the likelier one."""
    found = weaken_tails(
        Pairs(-20 * ONE, -10 * ONE, 20 * ONE, 10 * ONE, chosen_tail=-10 * ONE, rejected_tail=0 * ONE), alpha
    )
    assert (found.chosen_mean.item(), found.rejected_mean.item()) == pytest.approx((-1.0, -1.0))
    assert Simpo(SimpoConfig(gamma=0.0))(found).item() == pytest.approx(math.log(2))
    assert Orpo(OrpoConfig(beta=1.0))(found).item() == pytest.approx(math.log(2))


def test_a_mean_over_a_weakened_tail_is_that_of_its_weighted_tokens() -> None:
    torch.manual_seed(0)
    logps, weights = -torch.rand(5, dtype=torch.float64), torch.tensor([1, 1, 1, 0.4, 0.4], dtype=torch.float64)
    chosen, one = logps.sum()[None], torch.ones(1, dtype=torch.float64)
    found = weaken_tails(
        Pairs(chosen, -one, 5 * one, 3 * one, chosen_tail=logps[3:].sum()[None], rejected_tail=0 * one), 0.4
    )
    torch.testing.assert_close(found.chosen_mean[0], (weights * logps).sum() / weights.sum(), rtol=1e-14, atol=0)


def test_an_answer_that_the_model_would_draw_itself_weighs_more() -> None:
    """Of a uniform model over four tokens every answer weighs 1; a certain one weighs 1, too; an unlikely one less."""
    logp = torch.tensor([2 * math.log(0.25), 0.0, math.log(0.1)], requires_grad=True)
    squares = torch.tensor([2 * math.log(0.25), 0.0, math.log(0.1**2 + 0.9**2)])
    found = answer_weights(logp, squares, torch.tensor([2.0, 5.0, 1.0]))
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.1 / 0.82])
    assert not found.requires_grad


def test_weights_multiply_losses_and_have_no_gradient() -> None:
    weight = torch.tensor([0.5], requires_grad=True)
    given = Pairs(ONE, ONE, ONE, ONE, chosen_weights=weight, rejected_weights=0.5 * ONE)
    loss = torch.tensor([4.0], requires_grad=True)
    found = weigh(loss, given)
    assert found.item() == 1.0
    assert torch.autograd.grad(found, (loss, weight), allow_unused=True)[1] is None
    with pytest.raises(UsageError, match=r"Pairs\.chosen_weights is None"):
        weigh(loss, pairs())


def step_loss(values: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean over pairs that are a whole step."""
    return transport.transport_loss(values, transport.counterparts(*values), beta=0.3).mean()


def test_transport_has_the_gradient_of_the_sorted_values() -> None:
    """Each side's own half gives it: as if sort() had been differentiated through."""
    first = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64, requires_grad=True)
    second = torch.tensor([1.5, -0.2, 0.1, -3.0], dtype=torch.float64, requires_grad=True)
    sorted_loss = -torch.nn.functional.logsigmoid(0.3 * (first.sort().values - second.sort().values)).mean()
    found = step_loss((first, second))
    assert found.item() == pytest.approx(sorted_loss.item(), rel=1e-14)
    for one, other in zip(
        torch.autograd.grad(found, (first, second)), torch.autograd.grad(sorted_loss, (first, second)), strict=True
    ):
        assert one.tolist() == pytest.approx(other.tolist(), rel=1e-14)


def test_transport_depends_on_distributions_and_not_on_who_is_paired_with_whom() -> None:
    chosen, rejected = torch.tensor([-3.0, -1.0, -7.0]), torch.tensor([-5.0, -2.0, -4.0])
    zeros, ones = torch.zeros(3), torch.ones(3)
    one = Pairs(chosen, rejected, ones, ones, zeros, zeros)
    other = Pairs(chosen, rejected[[2, 0, 1]], ones, ones, zeros, zeros)
    unpaired, paired = transport.unpaired_values, transport.paired_values
    assert step_loss(unpaired(one)).item() == pytest.approx(step_loss(unpaired(other)).item(), rel=1e-6)
    assert step_loss(paired(one)).item() != pytest.approx(step_loss(paired(other)).item(), rel=1e-2)


def test_paired_transport_of_the_reference_itself_costs_log_2() -> None:
    given = Pairs(
        *(torch.tensor([-3.0, -1.0]), torch.tensor([-5.0, -2.0])), *2 * (torch.ones(2),), *2 * (torch.zeros(2),)
    )
    same = Pairs(
        given.chosen, given.rejected, torch.ones(2), torch.ones(2), given.chosen.flip(0), given.rejected.flip(0)
    )
    assert step_loss(transport.paired_values(same)).item() == pytest.approx(math.log(2))


def test_kto_starts_at_half_of_each_weight_and_pulls_both_ways() -> None:
    rewards = torch.zeros(2, requires_grad=True)
    desirable = torch.tensor([True, False])
    found = labelled.kto(rewards, desirable, 0.0, beta=0.1, desirable_weight=1.0, undesirable_weight=1.5)
    assert found.tolist() == pytest.approx([0.5, 0.75])
    (gradient,) = torch.autograd.grad(found.sum(), rewards)
    assert gradient[0] < 0 < gradient[1]


def test_the_baseline_of_kto_is_a_mean_of_the_step_never_below_0() -> None:
    total = torch.tensor(3.0, requires_grad=True)
    assert labelled.kl_baseline(total, 4).item() == 0.75
    assert labelled.kl_baseline(-total, 4).item() == 0
    assert not labelled.kl_baseline(total, 4).requires_grad
