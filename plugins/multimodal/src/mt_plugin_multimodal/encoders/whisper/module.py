"""Whisper's encoder (https://arxiv.org/abs/2212.04356, section 2.2), its tensors under the names of transformers' ``WhisperEncoder``.

Shapes: I items, M mel channels, F frames, T features of an item, D channels of a feature, H heads, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mt_core.nn import Encoder

from . import WhisperConfig

_LONGEST = 10_000
"""Longest wavelength of the positions, over 2π."""


class WhisperEncoder(Encoder):
    """Two convolutions, positions, pre-norm blocks; the last norm only behind the last layer of the weights."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.n_mels, config.dim, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(config.dim, config.dim, kernel_size=3, stride=2, padding=1)
        self.layers = nn.ModuleList(WhisperLayer(config) for _ in range(config.built_layers))
        self.layer_norm = nn.LayerNorm(config.dim) if config.layer is None else nn.Identity()

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``mel`` (I, M, F) -> (I · T, D)."""
        x_IDF = nn.functional.gelu(self.conv1(inputs["mel"].to(self.conv1.weight.dtype)))
        x_ITD = nn.functional.gelu(self.conv2(x_IDF)).transpose(1, 2)
        x_ITD = x_ITD + sinusoids(x_ITD.shape[1], x_ITD.shape[2], x_ITD.device).to(x_ITD.dtype)
        for layer in self.layers:
            x_ITD = layer(x_ITD)
        return self.layer_norm(x_ITD).flatten(0, 1)  # type: ignore[no-any-return]


def sinusoids(length: int, dim: int, device: torch.device | None = None) -> Tensor:
    """Return (T, D) in fp32: sines of each place at wavelengths from 2π to 2π · 10,000, then their cosines."""
    frequencies = torch.exp(torch.arange(dim // 2, device=device) * (-math.log(_LONGEST) / (dim // 2 - 1)))
    angles = torch.arange(length, device=device)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class WhisperLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.self_attn = WhisperAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.dim)
        self.fc1 = nn.Linear(config.dim, config.ffn_dim)
        self.fc2 = nn.Linear(config.ffn_dim, config.dim)
        self.final_layer_norm = nn.LayerNorm(config.dim)

    def forward(self, x_ITD: Tensor) -> Tensor:
        """(I, T, D) -> (I, T, D)."""
        x_ITD = x_ITD + self.self_attn(self.self_attn_layer_norm(x_ITD))
        return x_ITD + self.fc2(nn.functional.gelu(self.fc1(self.final_layer_norm(x_ITD))))  # type: ignore[no-any-return]


class WhisperAttention(nn.Module):
    """Attention of each feature to all of its item. Keys have no bias."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.q_proj = nn.Linear(config.dim, config.dim)
        self.k_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.dim)
        self.out_proj = nn.Linear(config.dim, config.dim)

    def forward(self, x_ITD: Tensor) -> Tensor:
        """(I, T, D) -> (I, T, D)."""
        shape = (*x_ITD.shape[:2], self.n_heads, -1)
        q_IHTd, k_IHTd, v_IHTd = (
            project(x_ITD).view(shape).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out_IHTd = nn.functional.scaled_dot_product_attention(q_IHTd, k_IHTd, v_IHTd)
        return self.out_proj(out_IHTd.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
