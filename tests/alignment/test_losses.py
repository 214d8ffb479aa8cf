"""What holds of losses whatever the numbers are: independence of pairs, symmetry of sides, order, and extreme values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mt_core import UsageError
from mt_plugin_alignment import Pairs
from mt_plugin_alignment.divergences import MOST
from mt_plugin_alignment.losses.orpo import log_odds
from mt_plugin_alignment.offers.losses import LOSSES
from mt_plugin_alignment.options import DivergenceOptions

COMPONENTS = {each.name: each for each in LOSSES}
FALLING = {"sigmoid", "robust", "hinge", "sigmoid-norm", "bco-pair", "apo-zero", "cpo", "simpo", "orpo"}
"""Losses that never rise as the chosen answer becomes likelier. Not IPO, SPPO and EXO, which have a target; nor NCA, APO-down, DiscoPOP."""

SUMS = st.floats(-300.0, -0.01)
LENGTHS = st.integers(1, 400)
SIDES = st.tuples(SUMS, SUMS, LENGTHS)
"""Log-probability of an answer under the model and under the reference, and its tokens."""
DRAWN = st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6)


def build(name: str, **options: Any) -> Any:
    component = COMPONENTS[name]
    return component.build(component.config(**options))


def pairs_of(drawn: list[tuple[tuple[float, float, int], tuple[float, float, int]]]) -> Pairs:
    (chosen, reference_chosen, chosen_lengths), (rejected, reference_rejected, rejected_lengths) = (
        torch.tensor([pair[side] for pair in drawn], dtype=torch.float64).unbind(1) for side in (0, 1)
    )
    return Pairs(chosen, rejected, chosen_lengths, rejected_lengths, reference_chosen, reference_rejected)


def swapped(pairs: Pairs) -> Pairs:
    return Pairs(
        pairs.rejected,
        pairs.chosen,
        pairs.rejected_lengths,
        pairs.chosen_lengths,
        pairs.reference_rejected,
        pairs.reference_chosen,
    )


def raised(pairs: Pairs, by: float) -> Pairs:
    """The same where the model gives chosen answers a larger log-probability, below 0 still."""
    return Pairs(
        pairs.chosen * (1 - by),
        pairs.rejected,
        pairs.chosen_lengths,
        pairs.rejected_lengths,
        pairs.reference_chosen,
        pairs.reference_rejected,
    )


@pytest.mark.parametrize("name", COMPONENTS)
@settings(max_examples=30, deadline=None)
@given(drawn=DRAWN)
def test_a_pair_costs_the_same_beside_others_and_pulls_at_itself_alone(name: str, drawn: Any) -> None:
    loss, pairs = build(name), pairs_of(drawn)
    pairs.chosen.requires_grad_()
    whole = loss(pairs)
    for place, pair in enumerate(drawn):
        (gradient,) = torch.autograd.grad(whole[place], pairs.chosen, retain_graph=True)
        assert gradient[torch.arange(len(drawn)) != place].abs().sum() == 0
        assert torch.allclose(loss(pairs_of([pair]))[0], whole[place], rtol=1e-12, atol=1e-12)


@given(drawn=DRAWN)
@settings(max_examples=30, deadline=None)
def test_swapping_the_sides_turns_the_margin_around(drawn: Any) -> None:
    pairs = pairs_of(drawn)
    other = swapped(pairs)
    assert torch.equal(other.margin, -pairs.margin)
    assert torch.equal(other.chosen_reward, pairs.rejected_reward)
    assert torch.equal(other.rejected_mean_reward, pairs.chosen_mean_reward)
    assert torch.equal(other.chosen_mean, pairs.rejected_mean)


@pytest.mark.parametrize("name", ["sigmoid", "cpo"])
@given(drawn=DRAWN)
@settings(max_examples=30, deadline=None)
def test_dpo_and_its_swapped_pair_have_probabilities_that_add_up_to_one(name: str, drawn: Any) -> None:
    loss, pairs = build(name), pairs_of(drawn)
    total = (-loss(pairs)).exp() + (-loss(swapped(pairs))).exp()
    assert torch.allclose(total, torch.ones_like(total))


@pytest.mark.parametrize("name", sorted(FALLING))
@given(drawn=DRAWN, by=st.floats(0.01, 0.9))
@settings(max_examples=30, deadline=None)
def test_a_likelier_chosen_answer_never_costs_more(name: str, drawn: Any, by: float) -> None:
    loss, pairs = build(name), pairs_of(drawn)
    assert (loss(raised(pairs, by)) <= loss(pairs) + 1e-9).all()


@pytest.mark.parametrize("name", ["sigmoid", "robust", "exo-pair", "bco-pair", "cpo", "simpo"])
@given(drawn=DRAWN)
@settings(max_examples=20, deadline=None)
def test_a_loss_is_that_of_its_formula_in_plain_numbers(name: str, drawn: Any) -> None:
    """The formulas of the papers, with ``math`` alone; overflow is where ``math`` says so."""
    options = {"robust": {"label_smoothing": 0.2}, "exo-pair": {"label_smoothing": 0.01}, "simpo": {"gamma": 0.5}}
    beta, found = 0.05, build(name, beta=0.05, **options.get(name, {}))(pairs_of(drawn))
    for place, ((w, ref_w, len_w), (lost, ref_l, len_l)) in enumerate(drawn):
        r_w, r_l = w - ref_w, lost - ref_l
        right, wrong = _log_sigmoid(beta * (r_w - r_l)), _log_sigmoid(-beta * (r_w - r_l))
        q = math.exp(right)
        wanted = {
            "sigmoid": -right,
            "robust": (0.2 * wrong - 0.8 * right) / 0.6,
            "exo-pair": q * (right - math.log(0.99)) + (1 - q) * (wrong - math.log(0.01)),
            "bco-pair": -_log_sigmoid(beta * r_w) - _log_sigmoid(-beta * r_l),
            "cpo": -_log_sigmoid(beta * (w - lost)),
            "simpo": -_log_sigmoid(beta * (w / len_w - lost / len_l) - 0.5),
        }[name]
        assert found[place].item() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


@pytest.mark.parametrize(
    "name", [name for name, each in COMPONENTS.items() if issubclass(each.config, DivergenceOptions)]
)
def test_alpha_of_zero_and_of_one_are_the_divergences_at_the_ends(name: str) -> None:
    pairs = pairs_of([((-3.0, -4.0, 2), (-9.0, -7.5, 5)), ((-30.0, -29.0, 9), (-2.0, -2.5, 1))])
    for alpha, other in ((0.0, "forward-kl"), (1.0, "reverse-kl")):
        found = build(name, divergence="alpha", divergence_alpha=alpha)(pairs)
        assert torch.allclose(found, build(name, divergence=other)(pairs), rtol=1e-12)
    near = [build(name, divergence="alpha", divergence_alpha=alpha)(pairs) for alpha in (1 - 2e-6, 1.0, 1 + 2e-6)]
    assert torch.allclose(near[0], near[1], rtol=1e-3)
    assert torch.allclose(near[2], near[1], rtol=1e-3), "no jump at the limit"


def extreme(ratio: float) -> Pairs:
    """A pair in fp32 whose answers have log-ratios of this size, apart by twice that."""
    values = (-1.0 + min(ratio, 0), -1.0 + min(-ratio, 0), 3.0, 2.0, -1.0 - max(ratio, 0), -1.0 - max(-ratio, 0))
    chosen, rejected, *others = (torch.tensor([value]) for value in values)
    return Pairs(chosen.requires_grad_(), rejected.requires_grad_(), *others)


@pytest.mark.parametrize("ratio", [-1e3, 1e3])
@pytest.mark.parametrize("name", COMPONENTS)
def test_a_thousand_either_way_is_exact_in_single_precision(name: str, ratio: float) -> None:
    single = extreme(ratio)
    double = Pairs(
        *(value.detach().double().requires_grad_() for value in vars(single).values() if isinstance(value, Tensor))
    )
    losses = [build(name)(pairs).sum() for pairs in (single, double)]
    gradients = [
        torch.autograd.grad(loss, (pairs.chosen, pairs.rejected))
        for loss, pairs in zip(losses, (single, double), strict=True)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5, abs=1e-30)
    for one, other in zip(*gradients, strict=True):
        assert one.item() == pytest.approx(other.item(), rel=1e-4, abs=1e-30)


def test_discopop_costs_what_dpo_does_where_its_exponential_would_overflow() -> None:
    """TRL's is NaN there: e^200 · σ(-4000) in fp32 is infinity times 0."""
    assert build("discopop")(extreme(-1e3)).item() == pytest.approx(200.0)
    assert build("sigmoid")(extreme(-1e3)).item() == pytest.approx(200.0)


def test_odds_are_exact_where_answers_are_almost_certain_or_impossible() -> None:
    """p / (1 - p), from p = e^-20 to 1 - p = e^-20, beside the odds that ``math`` has of them."""
    for nearness in (20.0, 5.0, 0.5):
        small = -math.log1p(-math.exp(-nearness))  # -log p of the p that is e^-nearness below 1
        found = log_odds(torch.tensor([-nearness, -small], dtype=torch.float64))
        far = -nearness - math.log(-math.expm1(-nearness))
        assert found.tolist() == pytest.approx([far, nearness + math.log1p(-math.exp(-nearness))], rel=1e-9)
    certain = torch.zeros(1, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_odds(certain).sum(), certain)
    assert gradient.isfinite().all()
    assert log_odds(certain).item() == pytest.approx(-math.log(torch.finfo(torch.float32).eps), rel=1e-6)


def test_a_divergence_is_cut_where_it_would_overflow() -> None:
    loss = build("ipo", divergence="forward-kl", length="sum")
    found = loss(extreme(-1e3)).item()
    assert found == pytest.approx(math.exp(MOST) ** 2, rel=1e-3)


@pytest.mark.parametrize("name", [name for name, each in COMPONENTS.items() if build(name).needs_reference])
def test_without_a_reference_a_loss_that_needs_one_says_so(name: str) -> None:
    one = torch.ones(1)
    with pytest.raises(UsageError, match=r"Pairs\.reference_chosen is None: it was not measured"):
        build(name)(Pairs(-one, -one, one, one))


def test_cpo_is_dpo_with_a_reference_for_which_all_answers_are_equally_likely() -> None:
    pairs = pairs_of([((-3.0, -4.0, 2), (-9.0, -7.5, 5))])
    uniform = Pairs(
        pairs.chosen, pairs.rejected, pairs.chosen_lengths, pairs.rejected_lengths, torch.zeros(1), torch.zeros(1)
    )
    assert torch.equal(build("cpo")(pairs), build("sigmoid")(uniform))
    assert [build(name).nll for name in ("cpo", "orpo", "simpo", "sigmoid")] == [1.0, 1.0, 0.0, 0.0]
