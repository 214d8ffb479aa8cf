"""The loss of a student beside its teacher, whose logits never exist for more than a chunk of tokens.

Shapes: n trained tokens, C tokens of a chunk, D model width of the student, E that of the teacher, V rows of the student's head, W
vocabulary that both heads have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mt_core.nn import is_plain_linear

from .divergences import Divergence

CHUNK_TOKENS = 256
"""Tokens whose logits exist at one time. A dozen tensors of (C, V) do then, where the plain loss has three of up to four times as many
tokens."""


@dataclass(frozen=True)
class DistillationRule:
    """The loss of a token: (1 - ``weight``) · cross-entropy + ``weight`` · divergence, both in nats.

    The logits are divided by ``temperature`` for the divergence, which is multiplied by its square where ``squared``.
    """

    divergence: Divergence
    weight: float = 1.0
    temperature: float = 1.0
    squared: bool = True

    def compare(self, logits_CV: Tensor, teacher_CV: Tensor) -> Tensor:
        """Return the divergence of each token, (C,).

        A head may have more rows than the other, which no id leads to (padding): both softmaxes are over those that both have.
        """
        width = min(logits_CV.shape[1], teacher_CV.shape[1])
        teacher_CW = (teacher_CV[:, :width] / self.temperature).log_softmax(1)
        student_CW = (logits_CV[:, :width] / self.temperature).log_softmax(1)
        found_C = self.divergence(teacher_CW, student_CW)
        return found_C * self.temperature**2 if self.squared and self.temperature != 1 else found_C


class DistillationSums(NamedTuple):
    """Sums over tokens: the loss, which has a gradient, and both of its terms without their weights."""

    loss: Tensor
    cross_entropy: Tensor
    divergence: Tensor


@dataclass(frozen=True)
class TeacherTokens:
    """The teacher's head, and its hidden states (n, E) of the trained tokens, whose ids are ``labels_n``; ``weights_n`` multiply losses."""

    head: nn.Module
    hidden_nE: Tensor
    labels_n: Tensor
    weights_n: Tensor | None = None

    def logits(self, piece: slice) -> Tensor:
        """Return the logits (C, V) of the teacher, which gets no gradient."""
        with torch.no_grad():
            return widen(self.head(self.hidden_nE[piece]))

    def compare(self, logits_CV: Tensor, piece: slice, rule: DistillationRule) -> Tensor:
        """Return the sums (3,) of the loss, the cross-entropy and the divergence of a chunk."""
        cross_entropy_C = F.cross_entropy(logits_CV, self.labels_n[piece], reduction="none")
        divergence_C = rule.compare(logits_CV, self.logits(piece))
        losses_C = (1 - rule.weight) * cross_entropy_C + rule.weight * divergence_C
        values_3C = torch.stack([losses_C, cross_entropy_C, divergence_C])
        return (values_3C if self.weights_n is None else values_3C * self.weights_n[piece]).sum(1)


def distillation_sums(
    head: nn.Module, hidden_nD: Tensor, teacher: TeacherTokens, rule: DistillationRule, *, chunk: int = CHUNK_TOKENS
) -> DistillationSums:
    """Return sums over all tokens, in fp32. No tokens still run any head that is not a plain matrix once.

    A plain linear head gets its gradients in the forward, while the logits of a chunk are there; with any other head (a soft-cap, an
    adapter on it) a chunk is computed once more in the backward.
    """
    if is_plain_linear(head):
        # a Function is told that an input needs a gradient also where none is recorded
        given = [hidden_nD, head.weight]
        given = given if torch.is_grad_enabled() else [each.detach() for each in given]
        loss, terms = _LinearDistillation.apply(*given, teacher, rule, chunk)  # type: ignore[no-untyped-call]
        return DistillationSums(loss, terms[0], terms[1])
    pieces = [slice(start, start + chunk) for start in range(0, max(len(hidden_nD), 1), chunk)]
    found = [
        checkpoint(_compare_piece, head, hidden_nD[piece], teacher, piece, rule, use_reentrant=False)
        for piece in pieces
    ]
    total_3 = torch.stack(found).sum(0)
    return DistillationSums(total_3[0], total_3[1].detach(), total_3[2].detach())


@torch.no_grad()
def token_divergences(
    head: nn.Module, hidden_nD: Tensor, teacher: TeacherTokens, rule: DistillationRule, *, chunk: int = CHUNK_TOKENS
) -> Tensor:
    """Return the divergence of each token, (n,)."""
    found = [hidden_nD.new_empty(0, dtype=torch.float32)]
    for start in range(0, len(hidden_nD), chunk):
        piece = slice(start, start + chunk)
        found.append(rule.compare(widen(head(hidden_nD[piece])), teacher.logits(piece)))
    return torch.cat(found)


def widen(logits_CV: Tensor) -> Tensor:
    """Return logits in fp32 where they are in half precision, and others as they are."""
    return logits_CV.float() if logits_CV.dtype.itemsize < torch.float32.itemsize else logits_CV


def _compare_piece(
    head: nn.Module, hidden_CD: Tensor, teacher: TeacherTokens, piece: slice, rule: DistillationRule
) -> Tensor:
    return teacher.compare(widen(head(hidden_CD)), piece, rule)


def _differentiate(
    logits_CV: Tensor, teacher: TeacherTokens, piece: slice, rule: DistillationRule, *, wanted: bool
) -> tuple[Tensor, Tensor]:
    """Return the sums of ``TeacherTokens.compare``, and the gradient of the loss by the logits; nothing where that is not ``wanted``."""
    if not wanted:
        return teacher.compare(logits_CV, piece, rule), logits_CV.new_empty(0)
    with torch.enable_grad():
        loss, *terms = teacher.compare(logits_CV.requires_grad_(), piece, rule)
        (delta_CV,) = torch.autograd.grad(loss, logits_CV)
    return torch.stack([each.detach() for each in (loss, *terms)]), delta_CV


class _LinearDistillation(torch.autograd.Function):
    """Loss of a bias-free linear head. The gradients are ready after the forward, so that nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: Any, hidden_nD: Tensor, weight_VD: Tensor, teacher: TeacherTokens, rule: DistillationRule, chunk: int
    ) -> tuple[Tensor, Tensor]:
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        total_3 = torch.zeros(3, dtype=_sum_dtype(weight_VD), device=hidden_nD.device)
        grad_nD = torch.empty_like(hidden_nD) if need_hidden else None
        grad_VD = torch.zeros_like(weight_VD, dtype=_sum_dtype(weight_VD)) if need_weight else None
        for start in range(0, len(hidden_nD), chunk):
            piece = slice(start, start + chunk)
            logits_CV = widen(hidden_nD[piece] @ weight_VD.T)
            sums_3, delta_CV = _differentiate(logits_CV, teacher, piece, rule, wanted=need_hidden or need_weight)
            total_3 += sums_3
            del logits_CV  # before the next ones are made
            if grad_nD is not None:
                torch.mm(delta_CV.to(weight_VD.dtype), weight_VD, out=grad_nD[piece])
            if grad_VD is not None:
                grad_VD += delta_CV.to(weight_VD.dtype).T @ hidden_nD[piece]
            del delta_CV
        # Not among the saved tensors: autograd would keep those, and then copy the gradients instead of taking them.
        ctx.gradients, ctx.weight_dtype = (grad_nD, grad_VD), weight_VD.dtype
        terms_2 = total_3[1:].clone()
        ctx.mark_non_differentiable(terms_2)
        return total_3[0].clone(), terms_2

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_nD, grad_VD = ctx.gradients
        ctx.gradients = None
        if grad_nD is not None:
            grad_nD.mul_(grad)
        if grad_VD is not None:  # a sum over all tokens may be above what fp16 has; ``grad`` divides by their number
            grad_VD = grad_VD.mul_(grad).to(ctx.weight_dtype)
        return grad_nD, grad_VD, None, None, None


def _sum_dtype(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)
