"""Losses of tokens: formulas of the papers and of verl, written again over padded tensors in float64; values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mt_plugin_alignment.kl import estimate_kl
from mt_plugin_alignment.policy import answer_ratios, cispo_loss, clipped_loss, ratios, soft_loss

LENGTHS = (5, 2, 7)
LOW, HIGH = 0.2, 0.28
MASK_AT = torch.tensor([[place < length for place in range(max(LENGTHS))] for length in LENGTHS])
DOCUMENT_N = MASK_AT.nonzero()[:, 0]


def drawn(apart: float = 0.8) -> tuple[Tensor, Tensor, Tensor]:
    """(A, T) log-probabilities of the policy, of the one that drew, and advantages of answers (A, 1)."""
    generator = torch.Generator().manual_seed(2)
    logps = -3 * torch.rand(3, 7, generator=generator, dtype=torch.float64)
    old = logps + apart * torch.randn(3, 7, generator=generator, dtype=torch.float64)
    return logps.requires_grad_(), old, torch.tensor([[1.3], [-0.8], [-0.4]], dtype=torch.float64)


def sums(values_n: Tensor) -> Tensor:
    """Sums over answers, as ``Batch.document_sums``."""
    return torch.zeros(3, *values_n.shape[1:], dtype=values_n.dtype).index_add(0, DOCUMENT_N, values_n)


def gradient(loss: Tensor, logps_AT: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, logps_AT)
    return found


def assert_same(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], logps_AT: Tensor) -> None:
    """Compare two losses of (A, T) log-probabilities: one of the trained tokens, one of padded rows."""
    one, other = ours(logps_AT[MASK_AT]), theirs(logps_AT)
    assert float(one.detach()) == pytest.approx(float(other.detach()), rel=1e-12)
    assert gradient(one, logps_AT).flatten().tolist() == pytest.approx(
        gradient(other, logps_AT).flatten().tolist(), rel=1e-10, abs=1e-14
    )


def mean_of_answers(values_n: Tensor) -> Tensor:
    return (sums(values_n) / torch.tensor(LENGTHS)).mean()


@pytest.mark.parametrize("dual", [None, 1.5])
def test_clipped_ratios_are_those_of_ppo_with_dual_clip(dual: float | None) -> None:
    """``compute_policy_loss_vanilla``: the larger of both losses, and where A < 0 at most -cA."""
    logps, old, gained = drawn()

    def theirs(logps_AT: Tensor) -> Tensor:
        ratio = torch.exp(logps_AT - old)
        larger = torch.maximum(-gained * ratio, -gained * ratio.clamp(1 - LOW, 1 + HIGH))
        if dual is not None:
            larger = torch.where(gained < 0, torch.minimum(larger, -gained * dual), larger)
        return (larger * MASK_AT).sum() / MASK_AT.sum()

    gained_n = gained.expand(3, 7)[MASK_AT]
    assert_same(
        lambda own: clipped_loss(ratios(own, old[MASK_AT]), gained_n, low=LOW, high=HIGH, dual=dual).mean(),
        theirs,
        logps,
    )


def test_ratios_of_answers_are_those_of_gspo() -> None:
    """The paper's own objective: one clipped ratio for each answer, the geometric mean over its tokens; a gradient through that mean."""
    logps, old, gained = drawn(0.4)

    def theirs(logps_AT: Tensor) -> Tensor:
        ratio_A = torch.exp(((logps_AT - old) * MASK_AT).sum(1) / MASK_AT.sum(1))
        gained_A = gained[:, 0]
        return -torch.minimum(ratio_A * gained_A, ratio_A.clamp(1 - LOW, 1 + HIGH) * gained_A).mean()

    def ours(own: Tensor) -> Tensor:
        ratios_n = answer_ratios(own, old[MASK_AT], DOCUMENT_N, sums, whole=False)
        return mean_of_answers(clipped_loss(ratios_n, gained[DOCUMENT_N, 0], low=LOW, high=HIGH))

    assert_same(ours, theirs, logps)


def test_ratios_of_whole_answers_are_products() -> None:
    logps, old, gained = drawn(0.1)

    def theirs(logps_AT: Tensor) -> Tensor:
        ratio_A = torch.exp(((logps_AT - old) * MASK_AT).sum(1))
        gained_A = gained[:, 0]
        return -torch.minimum(ratio_A * gained_A, ratio_A.clamp(1 - LOW, 1 + HIGH) * gained_A).mean()

    def ours(own: Tensor) -> Tensor:
        ratios_n = answer_ratios(own, old[MASK_AT], DOCUMENT_N, sums, whole=True)
        return mean_of_answers(clipped_loss(ratios_n, gained[DOCUMENT_N, 0], low=LOW, high=HIGH))

    assert_same(ours, theirs, logps)


def test_a_soft_gate_is_that_of_sapo_and_has_the_gradient_of_the_ratio_at_1() -> None:
    """Equations 5 and 6 of https://arxiv.org/abs/2511.20347, with temperatures by the sign of the advantage."""
    logps, old, gained = drawn()
    gained_n, heat = gained.expand_as(logps)[MASK_AT], torch.where(gained > 0, 0.8, 1.4).double()

    def theirs(logps_AT: Tensor) -> Tensor:
        gate = 4 / heat / (1 + torch.exp(-heat * (torch.exp(logps_AT - old) - 1)))
        return -(gate * gained)[MASK_AT].mean()

    def ours(own: Tensor) -> Tensor:
        return soft_loss(ratios(own, old[MASK_AT]), gained_n, positive=0.8, negative=1.4).mean()

    assert_same(ours, theirs, logps)
    found = gradient(soft_loss(ratios(logps, logps.detach()), gained, positive=0.8, negative=1.4).sum(), logps)
    assert found.flatten().tolist() == pytest.approx((-gained).expand_as(logps).flatten().tolist(), rel=1e-10)


def test_every_token_keeps_a_gradient_with_cispo() -> None:
    """Its equation 4, with both of its bounds: the weight is clipped and has no gradient."""
    logps, old, gained = drawn()

    def theirs(logps_AT: Tensor) -> Tensor:
        weight = torch.exp(logps_AT - old).clamp(1 - LOW, 1 + HIGH).detach()
        return -(weight * gained * logps_AT * MASK_AT).sum() / MASK_AT.sum()

    gained_n = gained.expand(3, 7)[MASK_AT]
    assert_same(
        lambda own: cispo_loss(ratios(own, old[MASK_AT]), own, gained_n, low=LOW, high=HIGH).mean(), theirs, logps
    )
    found = gradient(cispo_loss(ratios(logps, old), logps, gained, low=LOW, high=HIGH).sum(), logps)
    assert (found.sign() == -gained.sign()).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_estimates_of_the_kl_are_schulmans(kind: str) -> None:
    logps, reference, _ = drawn()
    log_ratio = reference - logps
    expected = {"k1": -log_ratio, "k2": log_ratio**2 / 2, "k3": log_ratio.exp() - 1 - log_ratio}[kind]
    found = estimate_kl(logps, reference, kind)  # type: ignore[arg-type]
    assert found.flatten().tolist() == pytest.approx(expected.flatten().tolist(), rel=1e-12)


def test_numbers_far_apart_stay_finite() -> None:
    logps = torch.tensor([-500.0, 0.0], requires_grad=True)
    other, gained = torch.tensor([0.0, -500.0]), torch.tensor([1.0, -1.0])
    document = torch.zeros(2, dtype=torch.long)
    total: Callable[[Tensor], Tensor] = lambda values: values.sum(0, keepdim=True)  # noqa: E731
    found = [
        clipped_loss(ratios(logps, other), gained, low=LOW, high=HIGH, dual=3.0),
        clipped_loss(answer_ratios(logps, other, document, total, whole=True), gained, low=LOW, high=HIGH),
        cispo_loss(ratios(logps, other), logps, gained, low=1.0, high=4.0),
        estimate_kl(logps, other, "k2"),
        estimate_kl(logps, other, "k3"),
    ]
    assert all(torch.isfinite(each).all() for each in found)
    assert float(found[-1][0].detach()) == 10.0
    assert all(torch.isfinite(gradient(each.sum(), logps)).all() for each in found)
