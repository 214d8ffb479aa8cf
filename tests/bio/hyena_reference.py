"""HyenaDNA written plainly in fp64: the convolution is a sum over all pairs of positions, and nothing is shared with the sources.

The operator: https://arxiv.org/abs/2302.10866, section 3; the values: https://arxiv.org/abs/2306.15794.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros((), dtype=x.dtype))


def filters(weights: Weights, name: str, length: int, l_max: int) -> Tensor:
    """(L, D)."""
    rows = []
    for n in range(length):
        waves = [cmath.exp(-1j * f * 2 * math.pi * n / l_max) for f in (1e-4, 1.0)]
        rows.append([n / (l_max - 1), *(wave.real for wave in waves), *(wave.imag for wave in waves)])
    hidden = torch.tensor(rows, dtype=torch.float64)
    for index in (0, 2, 4):
        hidden = torch.sin(weights[f"{name}.1.freq"] * linear(hidden, weights, f"{name}.{index}"))
    made = linear(hidden, weights, f"{name}.6")
    dim = made.shape[1]
    slow, fast = math.log(0.01) / 1.5, math.log(0.01) / 0.3
    decays = [abs(slow + (fast - slow) * d / (dim - 1)) for d in range(dim)]
    window = [[math.exp(-n / (l_max - 1) * decay) + 0.05 for decay in decays] for n in range(length)]
    return made * torch.tensor(window, dtype=torch.float64)


def operator(x: Tensor, weights: Weights, name: str, l_max: int) -> Tensor:
    """(L, D) -> (L, D)."""
    length, dim = x.shape
    wide = linear(x, weights, f"{name}.in_proj")
    short, bias = weights[f"{name}.short_filter.weight"][:, 0], weights[f"{name}.short_filter.bias"]
    mixed = bias.repeat(length, 1)
    for n in range(length):
        for back in range(min(n, 2) + 1):
            mixed[n] += wide[n - back] * short[:, 2 - back]
    x0, x1, v = mixed[:, :dim], mixed[:, dim : 2 * dim], mixed[:, 2 * dim :]
    u, k = v * x1, filters(weights, f"{name}.filter_fn.implicit_filter", length, l_max)
    y = torch.stack([sum((k[n - m] * u[m] for m in range(n + 1)), torch.zeros(dim).double()) for n in range(length)])
    return linear(x0 * (y + weights[f"{name}.filter_fn.bias"] * u), weights, f"{name}.out_proj")


def hyena_dna(ids: Tensor, weights: Weights, n_layers: int, l_max: int) -> Tensor:
    """(L,) -> (L, D)."""
    x = weights["embeddings.word_embeddings.weight"][ids]
    for index in range(n_layers):
        at = f"layers.{index}"
        x = x + operator(norm(x, weights, f"{at}.norm1"), weights, f"{at}.mixer", l_max)
        hidden = linear(norm(x, weights, f"{at}.norm2"), weights, f"{at}.mlp.fc1")
        gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + linear(gelu, weights, f"{at}.mlp.fc2")
    return norm(x, weights, "ln_f")
