"""Divergences of two distributions of a token, as functions of their log-probabilities. Shapes: C tokens, V vocabulary.

With T the teacher's distribution and S the student's:

===================  =====================================================================================================
``forward-kl``       KL(T ‖ S), Hinton et al. (https://arxiv.org/abs/1503.02531)
``reverse-kl``       KL(S ‖ T), MiniLLM (https://arxiv.org/abs/2306.08543)
``jsd``              β KL(T ‖ M) + (1 - β) KL(S ‖ M), M = β T + (1 - β) S: GKD (https://arxiv.org/abs/2306.13649), eq. 1
``skew-kl``          KL(T ‖ α T + (1 - α) S): DistiLLM (https://arxiv.org/abs/2402.03898)
``skew-reverse-kl``  KL(S ‖ α S + (1 - α) T): DistiLLM
===================  =====================================================================================================

``jsd`` at β = 0 is ``forward-kl``, and at β = 1 ``reverse-kl``, as TRL's ``generalized_jsd_loss`` has it: not the limits of the
formula, which are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from .options import DivergenceOptions

Divergence = Callable[[Tensor, Tensor], Tensor]
"""(C, V) log-probabilities of the teacher, and of the student -> (C,) in nats."""


def divergence_of(options: DivergenceOptions) -> Divergence:
    """Return the divergence that the options name."""
    name = options.divergence
    if name == "jsd":
        return partial(jsd, beta=options.beta)
    if name == "skew-kl":
        return partial(skew_kl, alpha=options.alpha)
    if name == "skew-reverse-kl":
        return partial(skew_reverse_kl, alpha=options.alpha)
    return forward_kl if name == "forward-kl" else reverse_kl


def kl(p_CV: Tensor, q_CV: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities, (C, V), (C, V) -> (C,)."""
    return (p_CV.exp() * (p_CV - q_CV)).sum(-1)


def forward_kl(teacher_CV: Tensor, student_CV: Tensor) -> Tensor:
    """KL(T ‖ S): the student has to cover all that the teacher finds likely."""
    return kl(teacher_CV, student_CV)


def reverse_kl(teacher_CV: Tensor, student_CV: Tensor) -> Tensor:
    """KL(S ‖ T): the student has to avoid what the teacher finds unlikely."""
    return kl(student_CV, teacher_CV)


def jsd(teacher_CV: Tensor, student_CV: Tensor, *, beta: float) -> Tensor:
    """Generalized Jensen-Shannon divergence; see the module."""
    if beta in (0, 1):
        return reverse_kl(teacher_CV, student_CV) if beta else forward_kl(teacher_CV, student_CV)
    mixture_CV = mix(teacher_CV, student_CV, share=beta)
    return beta * kl(teacher_CV, mixture_CV) + (1 - beta) * kl(student_CV, mixture_CV)


def skew_kl(teacher_CV: Tensor, student_CV: Tensor, *, alpha: float) -> Tensor:
    """KL(T ‖ α T + (1 - α) S): finite however unlikely the student finds a token."""
    return kl(teacher_CV, mix(teacher_CV, student_CV, share=alpha))


def skew_reverse_kl(teacher_CV: Tensor, student_CV: Tensor, *, alpha: float) -> Tensor:
    """KL(S ‖ α S + (1 - α) T)."""
    return kl(student_CV, mix(student_CV, teacher_CV, share=alpha))


def mix(first_CV: Tensor, other_CV: Tensor, *, share: float) -> Tensor:
    """Log-probabilities of ``share`` of the first distribution and the rest of the other."""
    return torch.logaddexp(first_CV + math.log(share), other_CV + math.log1p(-share))
