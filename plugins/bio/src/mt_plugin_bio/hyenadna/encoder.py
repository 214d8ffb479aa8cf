"""HyenaDNA (https://arxiv.org/abs/2306.15794): Hyena operators of order 2 (https://arxiv.org/abs/2302.10866) instead of attention.

Names of parameters are those of the published checkpoints behind ``hyena.backbone.``. Nothing looks ahead, so that zeros behind
shorter items change nothing in them.

Shapes: I items, L ids of the longest, N ids of all items, D width, E features of a position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from mt_core.nn import Encoder
from mt_plugin_bio.ragged import Ragged

from .config import VOCABULARY_ROWS, HyenaDNAConfig, HyenaShape

BANDS = 2
"""Frequencies of a position: 1 + 2 · 2 features."""
FILTER_WIDTH = 64
FREQUENCY = 10.0
"""First value of the frequency of the filters' sines."""
FAST, SLOW, TARGET, SHIFT = 0.3, 1.5, 0.01, 0.05
"""The window of the fastest channel has fallen to ``TARGET`` after ``FAST`` of l_max, that of the slowest after ``SLOW``."""


class HyenaDNA(Encoder):
    """Ids to the hidden states of a causal model, one for each."""

    def __init__(self, config: HyenaDNAConfig) -> None:
        super().__init__()
        shape = config.shape
        self.n_layers = shape.n_layers
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(VOCABULARY_ROWS, shape.dim)})
        self.layers = nn.ModuleList(HyenaBlock(shape) for _ in range(config.blocks))
        self.ln_f = nn.LayerNorm(shape.dim) if config.has_all_blocks else nn.Identity()

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``{"ids": (N,)}`` -> (N, D)."""
        ragged = Ragged(features, inputs["ids"].device)
        x_ILD = ragged.pad(self.embeddings["word_embeddings"](inputs["ids"]))
        for block in self.layers:
            x_ILD = block(x_ILD)
        return ragged.flatten(self.ln_f(x_ILD))

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Draw as the published code does: matrices from N(0, 0.02), those that write to the residual stream less."""
        if name.endswith(".freq"):
            tensor.fill_(FREQUENCY)
        elif name.endswith("filter_fn.bias"):
            tensor.normal_(generator=generator)
        elif ".short_filter." in name:
            bound = 1 / math.sqrt(3)
            tensor.uniform_(-bound, bound, generator=generator)
        elif name.endswith(("out_proj.weight", "fc2.weight")):
            tensor.normal_(0.0, 0.02 / math.sqrt(2 * self.n_layers), generator=generator)
        else:
            super().init_tensor(name, tensor, generator)


class HyenaBlock(nn.Module):
    """x += Hyena(LN x), then x += MLP(LN x)."""

    def __init__(self, shape: HyenaShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.dim)
        self.mixer = Hyena(shape)
        self.norm2 = nn.LayerNorm(shape.dim)
        self.mlp = MLP(shape.dim)

    def forward(self, x_ILD: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        x_ILD = x_ILD + self.mixer(self.norm1(x_ILD))
        return x_ILD + self.mlp(self.norm2(x_ILD))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two matrices with a GELU between, approximated by tanh."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x_ILD: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        return self.fc2(F.gelu(self.fc1(x_ILD), approximate="tanh"))  # type: ignore[no-any-return]


class Hyena(nn.Module):
    """The operator of order 2: out(x0 · (k ∗ (v · x1) + b · (v · x1))), where x0, x1, v come through a convolution of three."""

    def __init__(self, shape: HyenaShape) -> None:
        super().__init__()
        width = 3 * shape.dim
        self.in_proj = nn.Linear(shape.dim, width)
        self.short_filter = nn.Conv1d(width, width, 3, padding=2, groups=width)
        self.filter_fn = HyenaFilter(shape)
        self.out_proj = nn.Linear(shape.dim, shape.dim)

    def forward(self, x_ILD: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        mixed = self.short_filter(self.in_proj(x_ILD).transpose(1, 2))[..., : x_ILD.shape[1]]
        x0_IDL, x1_IDL, v_IDL = mixed.chunk(3, 1)
        y_IDL = x0_IDL * self.filter_fn(v_IDL * x1_IDL)
        return self.out_proj(y_IDL.transpose(1, 2))  # type: ignore[no-any-return]


class HyenaFilter(nn.Module):
    """A filter as long as the input, which a small MLP makes from positions, and the convolution with it. In fp32 at least."""

    def __init__(self, shape: HyenaShape) -> None:
        super().__init__()
        self.l_max = shape.l_max
        self.bias = nn.Parameter(torch.randn(shape.dim))
        sine = Sine(FILTER_WIDTH)  # the same one three times, as published
        first = WideLinear(2 * BANDS + 1, FILTER_WIDTH)
        inner = [WideLinear(FILTER_WIDTH, FILTER_WIDTH) for _ in range(2)]
        last = WideLinear(FILTER_WIDTH, shape.dim, bias=False)
        self.implicit_filter = nn.Sequential(first, sine, inner[0], sine, inner[1], sine, last)

    def forward(self, u_IDL: Tensor) -> Tensor:
        """(I, D, L) -> (I, D, L): causal convolution, and each value times the bias."""
        dtype = torch.promote_types(u_IDL.dtype, torch.float32)
        length = u_IDL.shape[-1]
        z_LE, t_L1 = positions(length, self.l_max, u_IDL.device)
        k_LD = self.implicit_filter(z_LE.to(dtype)) * window(t_L1, self.bias.shape[0]).to(dtype)
        u = u_IDL.to(dtype)
        k_fft, u_fft = (torch.fft.rfft(each, n=2 * length) for each in (k_LD.t(), u))
        y_IDL = torch.fft.irfft(u_fft * k_fft, n=2 * length)[..., :length]
        return (y_IDL + self.bias.to(dtype).unsqueeze(-1) * u).to(u_IDL.dtype)  # type: ignore[no-any-return]


def positions(length: int, l_max: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(L, E) features [t, cos f w, −sin f w] and (L, 1) times t: from 0 to 1 over l_max, whatever the length is.

    In fp64, since a bf16 or fp32 angle of a late position would be coarse.
    """
    make = partial(torch.arange, length, dtype=torch.float64, device=device)
    t_L1 = make().unsqueeze(1) / (l_max - 1)
    angles = make().unsqueeze(1) * (2 * math.pi / l_max)
    frequencies = torch.linspace(1e-4, BANDS - 1, BANDS, dtype=torch.float64, device=device)
    phases = angles * frequencies
    return torch.cat([t_L1, phases.cos(), -phases.sin()], 1), t_L1


def window(t_L1: Tensor, dim: int) -> Tensor:
    """(L, D) exp(−t |δ|) + 0.05."""
    return torch.exp(-t_L1 * decays(dim, t_L1.device).abs()) + SHIFT


def decays(dim: int, device: torch.device) -> Tensor:
    """(D,) δ of each channel, from slow to fast."""
    slow, fast = (math.log(TARGET) / part for part in (SLOW, FAST))
    return torch.linspace(slow, fast, dim, dtype=torch.float64, device=device)


class WideLinear(nn.Linear):
    """A linear map in the dtype of its input, whatever its parameters are stored in."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) -> (…, out)."""
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class Sine(nn.Module):
    """sin(freq · x), with a frequency for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, width), FREQUENCY))

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) -> (…, width)."""
        return torch.sin(self.freq.to(x.dtype) * x)
