"""How likely a token is that the model draws itself, for WPO. Shapes: n tokens, C tokens of a chunk, D model width, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHUNK_TOKENS = 1024


@torch.no_grad()
def log_squares(head: nn.Module, hidden_nD: Tensor, *, chunk: int = CHUNK_TOKENS) -> Tensor:
    """log Σ_v p_v² of each token, (n,) in fp32, without gradient; logits exist for one chunk of tokens at a time."""
    found = [hidden_nD.new_empty(0, dtype=torch.float32)]
    for start in range(0, len(hidden_nD), chunk):
        logps_CV = head(hidden_nD[start : start + chunk]).float().log_softmax(1)
        found.append((2 * logps_CV).logsumexp(1))
    return torch.cat(found)
