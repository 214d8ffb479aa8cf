"""A mixture of LoRA experts written out token by token, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def route(x: Tensor, gate: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """For one token: the softmax over all experts, the numbers of the best, and their shares."""
    probabilities = torch.exp(gate @ x) / torch.exp(gate @ x).sum()
    best = torch.argsort(probabilities, descending=True)[:top_k]
    return probabilities, best, probabilities[best] / probabilities[best].sum()


def output(x: Tensor, w: Tensor, p: Mapping[str, Tensor], *, rank: int, scale: float, top_k: int) -> Tensor:
    """W x + s · Σ over the best of g_i B_i A_i x."""
    rows = []
    for token in x.flatten(0, -2):
        _, best, shares = route(token, p["lora_gate"], top_k)
        out = w @ token
        for expert, share in zip(best.tolist(), shares, strict=True):
            part = slice(expert * rank, (expert + 1) * rank)
            out = out + scale * share * p["lora_B"][:, part] @ (p["lora_A"][part] @ token)
        rows.append(out)
    return torch.stack(rows).view(*x.shape[:-1], -1)


def balance(x: Tensor, gate: Tensor, top_k: int) -> Tensor:
    """X · Σ f_i P_i of each row (equations 4 to 6 of Switch transformers), as often as the row has tokens."""
    total = torch.zeros((), dtype=x.dtype)
    for row in x:
        load, mean = torch.zeros(len(gate), dtype=x.dtype), torch.zeros(len(gate), dtype=x.dtype)
        for token in row:
            probabilities, best, _ = route(token, gate, top_k)
            load[best] += 1 / (len(row) * top_k)
            mean = mean + probabilities / len(row)
        total = total + len(row) * len(gate) * (load * mean).sum()
    return total
