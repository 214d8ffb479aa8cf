"""How likely a token is that the model draws itself, for WPO. Shapes: n tokens, C tokens of a chunk, D model width, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHUNK_TOKENS = 512
"""Tokens whose logits exist at one time: no more than the loss of a run has on a CPU."""


@torch.no_grad()
def log_squares(head: nn.Module, hidden_nD: Tensor, *, chunk: int = CHUNK_TOKENS) -> Tensor:
    """log Σ_v p_v² of each token, (n,) in fp32, without gradient; logits exist for one chunk of tokens at a time."""
    found = [hidden_nD.new_empty(0, dtype=torch.float32)]
    for start in range(0, len(hidden_nD), chunk):
        exp_CV = head(hidden_nD[start : start + chunk]).float()
        exp_CV.sub_(exp_CV.amax(1, keepdim=True)).exp_()  # in place: nobody else has these logits
        sum_C = exp_CV.sum(1)
        found.append(exp_CV.square_().sum(1).log_().sub_(2 * sum_C.log()))
        del exp_CV  # before the logits of the next chunk are there
    return torch.cat(found)
