"""MosaicBERT's blocks written plainly in fp64, one item and one pair of positions at a time: https://arxiv.org/abs/2312.17482.

``scores`` says how two positions see each other, so that a test can put in another rule than the published one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Scores = Callable[[Tensor, int, int, int], Tensor]
"""(q · k, head, i, j) -> score."""
SLOPES_12 = [2.0**-n for n in range(1, 9)] + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5]


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def published(width: int) -> Scores:
    return lambda product, head, i, j: product / math.sqrt(width) - SLOPES_12[head] * abs(i - j)


def attention(x: Tensor, weights: Weights, name: str, n_heads: int, scores: Scores) -> Tensor:
    length, dim = x.shape
    q, k, v = linear(x, weights, f"{name}.self.Wqkv").split(dim, 1)
    width = dim // n_heads
    seen = torch.zeros_like(x)
    for head in range(n_heads):
        part = slice(head * width, head * width + width)
        for i in range(length):
            row = torch.stack([scores(q[i, part] @ k[j, part], head, i, j) for j in range(length)])
            seen[i, part] = torch.softmax(row, 0) @ v[:, part]
    return norm(x + linear(seen, weights, f"{name}.output.dense"), weights, f"{name}.output.LayerNorm")


def bert(ids: Tensor, weights: Weights, n_layers: int, n_heads: int, scores: Scores) -> Tensor:
    """(L,) -> (L, D)."""
    rows = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(rows, weights, "embeddings.LayerNorm")
    for index in range(n_layers):
        at = f"encoder.layer.{index}"
        x = attention(x, weights, f"{at}.attention", n_heads, scores)
        both = x @ weights[f"{at}.mlp.gated_layers.weight"].T
        a, b = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        gelu = a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))
        x = norm(x + linear(gelu * b, weights, f"{at}.mlp.wo"), weights, f"{at}.mlp.layernorm")
    return x
