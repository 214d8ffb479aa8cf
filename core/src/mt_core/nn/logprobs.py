"""Log-probabilities of tokens without ever holding the logits of all tokens, differentiable by each token.

``chunked_loss`` makes its gradients in the forward, since every token's loss has the same weight. Here the weight of a token is known
in the backward alone (a pair's loss depends on the sums of both of its sides), which computes a chunk's logits once more.
Shapes: n tokens, C tokens of a chunk, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mt_core.nn.loss import add_outer, chunk_tokens, is_plain_linear


def token_logprobs(
    head: nn.Module,
    hidden_nD: Tensor,
    labels_n: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """A pair: log p(label) of each token in nats, and where ``entropy`` asks for it that of its distribution (else ``None``), (n,) in fp32.

    The logits of ``head(hidden)`` are divided by ``temperature``. Both results have gradients.
    """
    chunk = chunk or chunk_tokens(hidden_nD.device)
    if is_plain_linear(head):
        logps_n, entropy_n = _LinearLogprobs.apply(hidden_nD, head.weight, labels_n, temperature, entropy, chunk)  # type: ignore[no-untyped-call]
    else:
        # no tokens still run the head once: ZeRO 3's collectives count on it
        pieces = [slice(start, start + chunk) for start in range(0, max(len(hidden_nD), 1), chunk)]
        found = [
            checkpoint(_logprobs, head, hidden_nD[piece], labels_n[piece], temperature, entropy, use_reentrant=False)
            for piece in pieces
        ]
        logps_n, entropy_n = (torch.cat(each) for each in zip(*found, strict=True))
    return logps_n, entropy_n if entropy else None


def _logprobs(
    head: nn.Module, hidden_CD: Tensor, labels_C: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    logps_CV = (head(hidden_CD).float() / temperature).log_softmax(1)
    logps_C = logps_CV.gather(1, labels_C.unsqueeze(1)).squeeze(1)
    return logps_C, -(logps_CV.exp() * logps_CV).sum(1) if entropy else logps_C.new_empty(0)


class _LinearLogprobs(torch.autograd.Function):
    """Log-probabilities of a bias-free linear head. The backward keeps the log of the normaliser, and the entropy, of each token."""

    @staticmethod
    def forward(
        ctx: Any, hidden_nD: Tensor, weight_VD: Tensor, labels_n: Tensor, temperature: float, entropy: bool, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logps_n = hidden_nD.new_empty(len(hidden_nD), dtype=torch.float32)
        log_z_n, entropy_n = torch.empty_like(logps_n), logps_n.new_empty(len(logps_n) if entropy else 0)
        room_CV = hidden_nD.new_empty(min(chunk, len(hidden_nD)), len(weight_VD))  # one for all chunks
        for start in range(0, len(hidden_nD), chunk):
            piece = slice(start, start + chunk)
            logits_CV = _logits(hidden_nD[piece], weight_VD, temperature, room_CV)
            picked_C = logits_CV.gather(1, labels_n[piece].unsqueeze(1)).squeeze(1)
            if entropy:
                log_z_C = logits_CV.logsumexp(1)
                logps_CV = logits_CV.sub_(log_z_C.unsqueeze(1))
                entropy_n[piece] = -(logps_CV.exp() * logps_CV).sum(1)
            else:  # logsumexp has a copy of the logits
                high_C1 = logits_CV.amax(1, keepdim=True)
                log_z_C = logits_CV.sub_(high_C1).exp_().sum(1).log_().add_(high_C1.squeeze(1))
            log_z_n[piece], logps_n[piece] = log_z_C, picked_C - log_z_C
        ctx.save_for_backward(hidden_nD, weight_VD, labels_n, log_z_n, entropy_n)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)  # an entropy that is only looked at costs nothing here
        return logps_n, entropy_n

    @staticmethod
    def backward(ctx: Any, grad_n: Tensor | None, grad_entropy_n: Tensor | None) -> tuple[Tensor | None, ...]:
        # d log p(label) / d logits = onehot - p; d entropy / d logits = -p (log p + entropy)
        hidden_nD, weight_VD, labels_n, log_z_n, entropy_n = ctx.saved_tensors
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        grad_nD = torch.empty_like(hidden_nD) if need_hidden else None
        grad_VD = torch.zeros(weight_VD.shape, dtype=torch.float32, device=weight_VD.device) if need_weight else None
        grad_n = torch.zeros_like(log_z_n) if grad_n is None else grad_n
        room_CV = hidden_nD.new_empty(min(ctx.chunk, len(hidden_nD)), len(weight_VD))
        for start in range(0, len(hidden_nD), ctx.chunk):
            piece = slice(start, start + ctx.chunk)
            hidden_CD, scale_C1 = hidden_nD[piece], grad_n[piece].float().unsqueeze(1)
            logps_CV = _logits(hidden_CD, weight_VD, ctx.temperature, room_CV).sub_(log_z_n[piece].unsqueeze(1))
            if grad_entropy_n is not None:
                of_entropy_C1 = grad_entropy_n[piece].float().unsqueeze(1)
                inner_CV = of_entropy_C1 * (logps_CV + entropy_n[piece].unsqueeze(1)) + scale_C1
                delta_CV = logps_CV.exp_().mul_(inner_CV).neg_()
            else:
                delta_CV = logps_CV.exp_().mul_(-scale_C1)
            delta_CV.scatter_add_(1, labels_n[piece].unsqueeze(1), scale_C1)
            delta_CV = (delta_CV if ctx.temperature == 1 else delta_CV.div_(ctx.temperature)).to(weight_VD.dtype)
            if grad_nD is not None:
                torch.mm(delta_CV, weight_VD, out=grad_nD[piece])
            if grad_VD is not None:
                add_outer(grad_VD, delta_CV, hidden_CD)
        return grad_nD, None if grad_VD is None else grad_VD.to(weight_VD.dtype), None, None, None, None


def _logits(hidden_CD: Tensor, weight_VD: Tensor, temperature: float, room_CV: Tensor) -> Tensor:
    logits_CV = torch.mm(hidden_CD, weight_VD.T, out=room_CV[: len(hidden_CD)]).float()
    return logits_CV if temperature == 1 else logits_CV.div_(temperature)
