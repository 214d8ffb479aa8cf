"""The perceiver resampler of Idefics2 (https://arxiv.org/abs/2405.02246), its tensors under the names of that model's connector.

Shapes: I items, L features of the longest item, N features of all items, W width of a feature, D model width, Q latents, H query heads,
K key/value heads, d head width, M hidden states of all items.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from mt_core.media import Grid
from mt_core.nn import GatedMLP, Projector, RMSNorm, swiglu

from ..ragged import pad_items
from . import ResamplerConfig


class Resampler(Projector):
    """Features brought to the model's width, then a fixed number of latents that attend to them."""

    def __init__(self, config: ResamplerConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.modality_projection = GatedProjection(source, config.ffn_dim or 4 * target, target)
        self.perceiver_resampler = Perceiver(config, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        context_ILD, mask_IL = pad_items(self.modality_projection(features_NW), features)
        return self.perceiver_resampler(context_ILD, mask_IL).flatten(0, 1)  # type: ignore[no-any-return]

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Fill one parameter in place: latents are 1, as in Idefics2."""
        if name == "perceiver_resampler.latents":
            tensor.fill_(1.0)
        else:
            super().init_tensor(name, tensor, generator)


class GatedProjection(nn.Module):
    """A gated MLP from one width to another, without bias."""

    def __init__(self, source: int, inner: int, target: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(source, inner, bias=False)
        self.up_proj = nn.Linear(source, inner, bias=False)
        self.down_proj = nn.Linear(inner, target, bias=False)

    def forward(self, features_NW: Tensor) -> Tensor:
        """(N, W) -> (N, D)."""
        return self.down_proj(swiglu(self.gate_proj(features_NW), self.up_proj(features_NW)))  # type: ignore[no-any-return]


class Perceiver(nn.Module):
    """Latents through all layers, each of which sees the same features."""

    def __init__(self, config: ResamplerConfig, dim: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.ones(config.queries, dim))
        self.layers = nn.ModuleList(PerceiverLayer(config, dim) for _ in range(config.depth))
        self.norm = RMSNorm(dim, eps=config.norm_eps)

    def forward(self, context_ILD: Tensor, mask_IL: Tensor | None) -> Tensor:
        """(I, L, D), (I, L) -> (I, Q, D)."""
        latents_IQD = self.latents.expand(len(context_ILD), -1, -1)
        mask_I11X = None
        if mask_IL is not None:
            latents_IQ = mask_IL.new_ones(latents_IQD.shape[:2])
            mask_I11X = torch.cat([mask_IL, latents_IQ], dim=1)[:, None, None]
        for layer in self.layers:
            latents_IQD = layer(latents_IQD, context_ILD, mask_I11X)
        return self.norm(latents_IQD)  # type: ignore[no-any-return]


class PerceiverLayer(nn.Module):
    """Attention of latents to features and latents, then a gated MLP, each added to the latents."""

    def __init__(self, config: ResamplerConfig, dim: int) -> None:
        super().__init__()
        self.input_latents_norm = RMSNorm(dim, eps=config.norm_eps)
        self.input_context_norm = RMSNorm(dim, eps=config.norm_eps)
        self.self_attn = PerceiverAttention(config, dim)
        self.post_attention_layernorm = RMSNorm(dim, eps=config.norm_eps)
        self.mlp = GatedMLP(dim, 4 * dim)

    def forward(self, latents_IQD: Tensor, context_ILD: Tensor, mask_I11X: Tensor | None) -> Tensor:
        """(I, Q, D), (I, L, D) -> (I, Q, D)."""
        seen_IQD = self.self_attn(self.input_latents_norm(latents_IQD), self.input_context_norm(context_ILD), mask_I11X)
        latents_IQD = latents_IQD + seen_IQD
        return latents_IQD + self.mlp(self.post_attention_layernorm(latents_IQD))  # type: ignore[no-any-return]


class PerceiverAttention(nn.Module):
    """Grouped-query attention without bias, whose keys come from features and latents together (X = L + Q of them)."""

    def __init__(self, config: ResamplerConfig, dim: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        self.q_proj = nn.Linear(dim, config.n_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, config.n_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, config.n_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.n_heads * config.head_dim, dim, bias=False)

    def forward(self, latents_IQD: Tensor, context_ILD: Tensor, mask_I11X: Tensor | None) -> Tensor:
        """(I, Q, D), (I, L, D) -> (I, Q, D)."""
        seen_IXD = torch.cat([context_ILD, latents_IQD], dim=1)
        q_IHQd = self.q_proj(latents_IQD).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        k_IHXd, v_IHXd = self._shared(self.k_proj(seen_IXD)), self._shared(self.v_proj(seen_IXD))
        out_IHQd = nn.functional.scaled_dot_product_attention(q_IHQd, k_IHXd, v_IHXd, attn_mask=mask_I11X)
        return self.o_proj(out_IHQd.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _shared(self, x_IXE: Tensor) -> Tensor:
        """(I, X, K·d) -> (I, H, X, d). Heads are repeated, since SDPA's fast kernels take no groups beside a mask."""
        x_IKXd = x_IXE.view(*x_IXE.shape[:2], self.n_kv_heads, self.head_dim).transpose(1, 2)
        return x_IKXd.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
