"""The loss in chunks has the value and the gradient of the plain one, and the memory of a chunk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from mt_plugin_distillation.divergences import divergence_of, forward_kl
from mt_plugin_distillation.loss import DistillationRule, TeacherTokens, distillation_sums, token_divergences
from mt_plugin_distillation.options import DivergenceOptions

TOKENS, WIDTH, OTHER, ROWS = 23, 8, 12, 40


class Capped(nn.Linear):
    """A head that is no plain matrix."""

    def forward(self, hidden: Tensor) -> Tensor:
        return 5 * torch.tanh(super().forward(hidden) / 5)


def parts(
    head: type[nn.Linear] = nn.Linear, *, tokens: int = TOKENS, weighted: bool = False, rows: int = ROWS, **more: Any
) -> tuple[nn.Linear, Tensor, TeacherTokens]:
    """A head, hidden states, and a teacher, in float64 where nothing else is said."""
    torch.manual_seed(0)
    kind = {"dtype": torch.float64, **more}
    student, teacher = head(WIDTH, rows, bias=False, **kind), nn.Linear(OTHER, rows + 7, bias=False, **kind)
    teacher.requires_grad_(False)
    hidden, other = torch.randn(tokens, WIDTH, **kind), torch.randn(tokens, OTHER, **kind)
    weights = torch.rand(tokens, **kind) if weighted else None
    with torch.no_grad():
        student.weight.mul_(4)
    return student, hidden.requires_grad_(), TeacherTokens(teacher, other, torch.randint(rows, (tokens,)), weights)


def plain(head: nn.Module, hidden: Tensor, teacher: TeacherTokens, rule: DistillationRule) -> Tensor:
    """The loss with the logits of all tokens at once."""
    logits, others = head(hidden), teacher.head(teacher.hidden_nE)[:, :ROWS]
    apart = rule.divergence((others / rule.temperature).log_softmax(1), (logits / rule.temperature).log_softmax(1))
    apart = apart * (rule.temperature**2 if rule.squared else 1)
    losses = (1 - rule.weight) * F.cross_entropy(logits, teacher.labels_n, reduction="none") + rule.weight * apart
    return (losses if teacher.weights_n is None else losses * teacher.weights_n).sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("head", [nn.Linear, Capped])
@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_chunks_give_the_plain_loss_and_gradient(head: type[nn.Linear], chunk: int, weighted: bool) -> None:
    for options in ({}, {"divergence": "jsd", "beta": 0.2}, {"divergence": "skew-reverse-kl"}):
        rule = DistillationRule(divergence_of(DivergenceOptions(**options)), weight=0.7, temperature=1.7)
        student, hidden, teacher = parts(head, weighted=weighted)
        loss = distillation_sums(student, hidden, teacher, rule, chunk=chunk).loss
        expected = plain(student, hidden, teacher, rule)
        assert torch.allclose(loss, expected, rtol=1e-12, atol=0)
        wanted = hidden, student.weight
        for found, gradient in zip(
            torch.autograd.grad(3 * loss, wanted), torch.autograd.grad(3 * expected, wanted), strict=True
        ):
            assert torch.allclose(found, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("head", [nn.Linear, Capped])
def test_the_terms_are_those_of_the_loss_without_their_weights(head: type[nn.Linear]) -> None:
    student, hidden, teacher = parts(head)
    sums = distillation_sums(student, hidden, teacher, DistillationRule(forward_kl, weight=0.3), chunk=4)
    assert torch.allclose(sums.loss, 0.7 * sums.cross_entropy + 0.3 * sums.divergence)
    assert torch.allclose(
        sums.cross_entropy, F.cross_entropy(student(hidden), teacher.labels_n, reduction="sum").detach()
    )
    each = token_divergences(student, hidden, teacher, DistillationRule(forward_kl), chunk=4)
    assert torch.allclose(each.sum(), sums.divergence)
    assert not sums.cross_entropy.requires_grad
    assert not sums.divergence.requires_grad


@pytest.mark.parametrize("head", [nn.Linear, Capped])
def test_no_tokens_have_no_loss_and_a_gradient_of_zeros(head: type[nn.Linear]) -> None:
    """A rank without a trained token takes part in the step as the others do."""
    student, hidden, teacher = parts(head, tokens=0)
    calls: list[int] = []
    student.register_forward_hook(lambda *given: calls.append(1))
    loss = distillation_sums(student, hidden, teacher, DistillationRule(forward_kl)).loss
    assert float(loss.detach()) == 0
    assert float(torch.autograd.grad(loss, student.weight)[0].abs().sum()) == 0
    assert len(calls) == (0 if head is nn.Linear else 2), "any other head runs once, and again in the backward"


def test_where_no_gradient_is_wanted_none_is_computed() -> None:
    student, hidden, teacher = parts()
    rule = DistillationRule(forward_kl)
    expected = distillation_sums(student, hidden, teacher, rule).loss.detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, profile(activities=[ProfilerActivity.CPU]) as seen:
            found = distillation_sums(student, hidden, teacher, rule).loss
        assert torch.equal(found, expected)
        assert not [each.key for each in seen.key_averages() if "backward" in each.key.lower()]
    student.requires_grad_(False)  # under an adapter
    gradient = torch.autograd.grad(distillation_sums(student, hidden, teacher, rule).loss, hidden)[0]
    assert torch.allclose(gradient, torch.autograd.grad(plain(student, hidden, teacher, rule), hidden)[0])


def test_half_precision_is_compared_in_fp32() -> None:
    single = parts(dtype=torch.float32)
    student, hidden, teacher = parts(dtype=torch.bfloat16)
    student.load_state_dict(single[0].state_dict())
    teacher.head.load_state_dict(single[2].head.state_dict())
    hidden = single[1].detach().bfloat16().requires_grad_()
    teacher = replace(teacher, hidden_nE=single[2].hidden_nE.bfloat16(), labels_n=single[2].labels_n)
    rule = DistillationRule(forward_kl, weight=0.5)
    sums = distillation_sums(student, hidden, teacher, rule)
    assert sums.loss.dtype == torch.float32
    assert float(sums.loss.detach()) == pytest.approx(float(distillation_sums(*single, rule).loss.detach()), rel=0.02)
    gradients = torch.autograd.grad(sums.loss, (hidden, student.weight))
    assert all(each.dtype == torch.bfloat16 and each.isfinite().all() for each in gradients)


def test_a_gradient_whose_sum_is_above_fp16_is_divided_before_it_is_rounded() -> None:
    """Without that no loss scale would be low enough, and each step would be left out."""
    student, hidden, teacher = parts(tokens=4000, dtype=torch.float16)
    hidden = torch.full_like(hidden, 200.0).requires_grad_()
    teacher = replace(teacher, labels_n=torch.zeros_like(teacher.labels_n))
    with torch.no_grad():
        student.weight.mul_(0)
    loss = distillation_sums(student, hidden, teacher, DistillationRule(forward_kl, weight=0.5)).loss
    (found,) = torch.autograd.grad(loss / 4000, student.weight)
    given = replace(teacher, head=teacher.head.float(), hidden_nE=teacher.hidden_nE.float())
    single = nn.Linear(WIDTH, ROWS, bias=False)
    nn.init.zeros_(single.weight)
    whole = plain(single, hidden.float(), given, DistillationRule(forward_kl, weight=0.5))
    (expected,) = torch.autograd.grad(whole / 4000, single.weight)
    assert float(expected.abs().max()) * 4000 > torch.finfo(torch.float16).max
    assert torch.allclose(found.float(), expected, rtol=1e-2, atol=0.05)


@pytest.mark.parametrize("head", [nn.Linear, Capped])
def test_the_logits_of_a_chunk_are_all_that_is_held(head: type[nn.Linear]) -> None:
    """The plain loss has those of all tokens, several times over."""
    rule, rows, tokens = DistillationRule(divergence_of(DivergenceOptions(divergence="jsd")), weight=0.5), 3000, 1024
    student, hidden, teacher = parts(head, tokens=tokens, rows=rows, dtype=torch.float32)

    def held(chunk: int) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            distillation_sums(student, hidden, teacher, rule, chunk=chunk).loss.backward()  # type: ignore[no-untyped-call]
        events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
        now = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        return most

    logits = rows * 4
    assert held(64) < 16 * 64 * logits
    assert held(tokens) > 6 * tokens * logits
