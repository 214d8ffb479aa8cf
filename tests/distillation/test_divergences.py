"""Divergences equal TRL's in value and gradient, and the formulas of their papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from mt_plugin_distillation.divergences import divergence_of
from mt_plugin_distillation.loss import DistillationRule
from mt_plugin_distillation.options import DivergenceOptions

EVERY: list[dict[str, Any]] = [
    {"divergence": "forward-kl"},
    {"divergence": "reverse-kl"},
    *({"divergence": "jsd", "beta": beta} for beta in (0.0, 0.1, 0.5, 0.9, 1.0)),
    {"divergence": "skew-kl", "alpha": 0.1},
    {"divergence": "skew-reverse-kl", "alpha": 0.3},
]
TRL_BETA = {"forward-kl": 0.0, "reverse-kl": 1.0}


def logits(dtype: torch.dtype = torch.float64, *, tokens: int = 7, rows: int = 50, scale: float = 3.0) -> list[Tensor]:
    """Logits of a student, which are a leaf, and of a teacher."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (scale * torch.randn(tokens, rows, generator=generator, dtype=dtype) for _ in range(2))
    return [student.requires_grad_(), teacher]


def value_and_gradient(loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    student, teacher = logits(dtype)
    value = loss(student, teacher)
    return value.detach(), torch.autograd.grad(value, student)[0]


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-6)], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("options", [each for each in EVERY if "skew" not in each["divergence"]], ids=str)
def test_the_generalized_jsd_is_that_of_trl(
    options: dict[str, Any], temperature: float, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trl = pytest.importorskip("trl.experimental.gkd")
    beta = options.get("beta", TRL_BETA.get(options["divergence"]))
    rule = DistillationRule(divergence_of(DivergenceOptions(**options)), temperature=temperature, squared=False)

    def theirs(student: Tensor, teacher: Tensor) -> Tensor:
        found: Tensor = trl.GKDTrainer.generalized_jsd_loss(
            student, teacher, beta=beta, temperature=temperature, reduction="sum"
        )
        return found

    ours = value_and_gradient(lambda student, teacher: rule.compare(student, teacher).sum(), dtype)
    for mine, expected in zip(ours, value_and_gradient(theirs, dtype), strict=True):
        assert float((mine - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("alpha", [0.1, 0.7])
def test_skewed_divergences_are_those_of_the_paper(alpha: float) -> None:
    student, teacher = (each.softmax(1) for each in logits())
    mixed = {"skew-kl": alpha * teacher + (1 - alpha) * student}
    mixed["skew-reverse-kl"] = alpha * student + (1 - alpha) * teacher
    for name, mixture in mixed.items():
        first = teacher if name == "skew-kl" else student
        expected = (first * (first / mixture).log()).sum(1)
        found = divergence_of(DivergenceOptions(divergence=name, alpha=alpha))(teacher.log(), student.log())
        assert torch.allclose(found, expected, rtol=1e-9, atol=0), name


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_a_divergence_is_zero_without_a_gradient_where_both_are_equal_and_above_it_elsewhere(
    options: dict[str, Any],
) -> None:
    divergence = divergence_of(DivergenceOptions(**options))
    student, teacher = logits()
    assert (divergence(teacher.log_softmax(1), student.log_softmax(1)) > 0).all()
    value = divergence(student.detach().log_softmax(1), student.log_softmax(1)).sum()
    assert float(value.detach().abs()) < 1e-12
    assert float(torch.autograd.grad(value, student)[0].abs().max()) < 1e-12


@pytest.mark.parametrize("options", EVERY, ids=str)
def test_certain_distributions_have_finite_divergences_and_gradients(options: dict[str, Any]) -> None:
    """Logits that are hundreds apart, in fp32: probabilities of exactly 0 and 1."""
    student, teacher = logits(torch.float32, scale=300.0)
    rule = DistillationRule(divergence_of(DivergenceOptions(**options)))
    value = rule.compare(student, teacher)
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), student)[0].isfinite().all()


def test_the_squared_temperature_keeps_the_size_of_the_gradient() -> None:
    """For small logits the divergence at τ is 1/τ² of that at 1 (Hinton et al., section 2.1)."""
    student, teacher = (0.01 * each.detach() for each in logits())
    forward = divergence_of(DivergenceOptions())
    plain = DistillationRule(forward).compare(student, teacher)
    for squared, factor in ((True, 1.0), (False, 1 / 16)):
        found = DistillationRule(forward, temperature=4.0, squared=squared).compare(student, teacher)
        assert torch.allclose(found, factor * plain, rtol=0.05)


def test_rows_that_one_head_alone_has_are_left_out_of_both_softmaxes() -> None:
    student, teacher = logits()
    wide = torch.cat([teacher, torch.full((len(teacher), 14), 9.0, dtype=teacher.dtype)], 1)
    rule = DistillationRule(divergence_of(DivergenceOptions()))
    assert torch.equal(rule.compare(student, wide), rule.compare(student, teacher))
    assert torch.equal(rule.compare(wide, student), rule.compare(teacher, student))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beta": 0.3}, "beta is an option of jsd, and divergence is forward-kl"),
        (
            {"divergence": "jsd", "alpha": 0.3},
            "alpha is an option of skew-kl and skew-reverse-kl, and divergence is jsd",
        ),
    ],
)
def test_an_option_of_another_divergence_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DivergenceOptions(**options)


@pytest.mark.parametrize("options", [EVERY[0], EVERY[1], EVERY[4], EVERY[-2], EVERY[-1]], ids=str)
def test_a_student_with_the_teachers_capacity_becomes_the_teacher(options: dict[str, Any]) -> None:
    """A table of logits reaches the teacher's distributions by plain descent."""
    _, teacher = logits(tokens=3, rows=5, scale=1.0)
    divergence, table = divergence_of(DivergenceOptions(**options)), torch.zeros_like(teacher, requires_grad=True)
    for _ in range(300):
        value = divergence(teacher.log_softmax(1), table.log_softmax(1)).sum()
        (gradient,) = torch.autograd.grad(value, table)
        table = (table - (8.0 if options["divergence"] == "jsd" else 2.0) * gradient).detach().requires_grad_()
    apart = F.kl_div(table.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    assert float(apart.detach()) < 1e-6
