"""Cross-entropy over a vocabulary without ever holding the logits of all tokens.

The idea is known from Cut Cross-Entropy (https://arxiv.org/abs/2411.09009) and Liger's fused linear cross-entropy
(https://arxiv.org/abs/2410.10989): logits live for one chunk of tokens, and the gradients of the chunk are computed
while they do. Shapes: n trained tokens, C tokens of a chunk, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

_CHUNK_TOKENS, _CHUNK_TOKENS_OF_CPU = 1024, 512
"""Tokens whose logits exist at one time; chosen on measurements in docs/log.md."""
_ADDS_TO_FP32 = hasattr(torch.ops.aten.addmm, "dtype_out")
"""Whether a GPU's product of half precision can be added to fp32 where it is made."""


@dataclass(frozen=True)
class LossTerms:
    """Terms of a token's loss beside its cross-entropy.

    ``smoothing`` s: the target is 1 - s on the label, and s spread evenly over all V tokens
    (https://arxiv.org/abs/1512.00567). ``z``: z · log²(Σ exp(logits)) keeps the normaliser near 1 (PaLM,
    https://arxiv.org/abs/2204.02311).
    """

    smoothing: float = 0.0
    z: float = 0.0


PLAIN = LossTerms()


def chunk_tokens(device: torch.device) -> int:
    """Return of how many tokens logits exist at one time on a device where nothing else is said."""
    return _CHUNK_TOKENS_OF_CPU if device.type == "cpu" else _CHUNK_TOKENS


def chunked_loss(
    head: nn.Module,
    hidden_nD: Tensor,
    labels_n: Tensor,
    weights_n: Tensor | None = None,
    *,
    terms: LossTerms = PLAIN,
    chunk: int | None = None,
) -> Tensor:
    """Sum of the losses of ``head(hidden)`` with ``labels``, in fp32: a scalar, with the gradient of the plain form.

    ``weights_n`` multiplies each token's loss. A plain linear head takes the fast way, whose gradients are made in the
    forward; any other head (a soft-cap, an adapter on it) is recomputed per chunk in the backward.
    """
    chunk = chunk or chunk_tokens(hidden_nD.device)
    if is_plain_linear(head):
        weight_VD = head.weight if torch.is_grad_enabled() else head.weight.detach()  # a Function sees no no_grad
        return _LinearLoss.apply(hidden_nD, weight_VD, labels_n, weights_n, chunk, terms)  # type: ignore[no-untyped-call, no-any-return]
    total = hidden_nD.new_zeros((), dtype=torch.float32)
    for start in range(0, max(len(hidden_nD), 1), chunk):  # no tokens still run the head, for collectives of ZeRO 3
        piece = slice(start, start + chunk)
        weight = None if weights_n is None else weights_n[piece]
        total = total + checkpoint(
            _piece_loss, head, hidden_nD[piece], labels_n[piece], weight, terms, use_reentrant=False
        )
    return total


def is_plain_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether the head is a matrix and nothing else."""
    is_linear = isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
    return is_linear and getattr(head, "bias", None) is None


@torch.no_grad()
def token_scores(
    head: nn.Module, hidden_nD: Tensor, labels_n: Tensor, *, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return for each token its cross-entropy in fp32, and the most likely token: (n,), (n,)."""
    chunk = chunk or chunk_tokens(hidden_nD.device)
    losses, likeliest = [hidden_nD.new_empty(0, dtype=torch.float32)], [labels_n.new_empty(0)]
    for start in range(0, len(hidden_nD), chunk):
        logits_CV = head(hidden_nD[start : start + chunk]).float()
        losses.append(F.cross_entropy(logits_CV, labels_n[start : start + chunk], reduction="none"))
        likeliest.append(logits_CV.argmax(-1))
    return torch.cat(losses), torch.cat(likeliest)


def _piece_loss(
    head: nn.Module, hidden_CD: Tensor, labels_C: Tensor, weights_C: Tensor | None, terms: LossTerms
) -> Tensor:
    logits_CV = head(hidden_CD).float()
    losses_C = F.cross_entropy(logits_CV, labels_C, reduction="none", label_smoothing=terms.smoothing)
    if terms.z:
        losses_C = losses_C + terms.z * logits_CV.logsumexp(1).square()
    return (losses_C if weights_C is None else losses_C * weights_C).sum()


class _LinearLoss(torch.autograd.Function):
    """Loss of a bias-free linear head. The gradients are ready after the forward, so nothing is computed twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_nD: Tensor,
        weight_VD: Tensor,
        labels_n: Tensor,
        weights_n: Tensor | None,
        chunk: int,
        terms: LossTerms,
    ) -> Tensor:
        # d loss / d logits = softmax · (1 + 2 z log Z) - (1 - s) · label - s / V
        smooth, vocabulary = terms.smoothing, weight_VD.shape[0]
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        total = torch.zeros((), dtype=torch.float32, device=hidden_nD.device)
        grad_nD = torch.empty_like(hidden_nD) if need_hidden else None
        grad_VD = torch.zeros(weight_VD.shape, dtype=torch.float32, device=weight_VD.device) if need_weight else None
        room_CV = hidden_nD.new_empty(min(chunk, len(hidden_nD)), weight_VD.shape[0])  # one for all chunks
        for start in range(0, len(hidden_nD), chunk):
            piece = slice(start, start + chunk)
            hidden_CD, labels_C1 = hidden_nD[piece], labels_n[piece].unsqueeze(1)
            rows_CV = torch.mm(hidden_CD, weight_VD.T, out=room_CV[: len(hidden_CD)])
            picked_C1 = rows_CV.gather(1, labels_C1).float()
            if smooth:
                picked_C1 = (1 - smooth) * picked_C1 + smooth * rows_CV.mean(1, keepdim=True, dtype=torch.float32)
            exp_CV, sum_C1, log_z_C1 = _exponentials(rows_CV, labels_C1)
            loss_C1 = log_z_C1 - picked_C1
            if terms.z:
                loss_C1 += terms.z * log_z_C1.square()
            scale_C1 = torch.ones_like(loss_C1) if weights_n is None else weights_n[piece].unsqueeze(1).float()
            total += (loss_C1 * scale_C1).sum()
            if not (need_hidden or need_weight):
                continue
            factor_C1 = scale_C1 * (1 + 2 * terms.z * log_z_C1) if terms.z else scale_C1
            if sum_C1 is not None:
                factor_C1 = factor_C1 / sum_C1
            is_one = sum_C1 is None and weights_n is None and not terms.z
            delta_CV = exp_CV if is_one else exp_CV.mul_(factor_C1)
            delta_CV.scatter_add_(1, labels_C1, (smooth - 1) * scale_C1)
            if smooth:
                delta_CV -= scale_C1 * (smooth / vocabulary)
            if delta_CV.dtype != weight_VD.dtype:  # the logits in half precision have been read
                delta_CV = room_CV[: len(hidden_CD)].copy_(delta_CV)
            if grad_nD is not None:
                torch.mm(delta_CV, weight_VD, out=grad_nD[piece])
            if grad_VD is not None:
                add_outer(grad_VD, delta_CV, hidden_CD)
        # Not among the saved tensors: autograd would keep those, and then copy the gradients instead of taking them.
        ctx.gradients = grad_nD, grad_VD
        ctx.weight_dtype = weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_nD, grad_VD = ctx.gradients
        ctx.gradients = None
        if grad_nD is not None:
            grad_nD.mul_(grad)
        if grad_VD is not None:
            grad_VD = grad_VD.mul_(grad).to(ctx.weight_dtype)
        return grad_nD, grad_VD, None, None, None, None


def _exponentials(logits_CV: Tensor, labels_C1: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return probabilities in fp32, times the second tensor where there is one, and log Σ exp(logits). Logits in fp32 are written over."""
    if _widens_by_kernel(logits_CV):
        logps_CV = F.log_softmax(logits_CV, 1, dtype=torch.float32)
        log_z_C1 = logits_CV.gather(1, labels_C1).float() - logps_CV.gather(1, labels_C1)
        return logps_CV.exp_(), None, log_z_C1
    logits_CV = logits_CV.float()
    high_C1 = logits_CV.amax(1, keepdim=True)
    exp_CV = logits_CV.sub_(high_C1).exp_()
    sum_C1 = exp_CV.sum(1, keepdim=True)
    return exp_CV, sum_C1, sum_C1.log() + high_C1


def _widens_by_kernel(logits_CV: Tensor) -> bool:
    """Return whether one kernel reads logits in half precision and writes their logarithmic softmax in fp32: a GPU has it."""
    return logits_CV.is_cuda and logits_CV.dtype != torch.float32


def add_outer(grad_VD: Tensor, delta_CV: Tensor, hidden_CD: Tensor) -> None:
    """``grad += delta.T @ hidden``, accumulated in fp32."""
    if delta_CV.dtype == torch.float32:
        grad_VD.addmm_(delta_CV.T, hidden_CD)
    elif delta_CV.is_cuda and _ADDS_TO_FP32:
        torch.ops.aten.addmm.dtype_out(grad_VD, delta_CV.T, hidden_CD, torch.float32, out=grad_VD)
    else:
        grad_VD += delta_CV.T @ hidden_CD
