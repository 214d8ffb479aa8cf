"""BLIP-2's Q-Former (https://arxiv.org/abs/2301.12597, section 3.1), its tensors under the names of transformers' ``Blip2Model``.

It computes in fp32 whatever dtype its parameters have, as BLIP-2 does; the projection to the model's width does not. Dropout is 0.

Shapes: I items, L features of the longest item, N features of all items, W width of a feature, D model width, Q queries, C channels of
the Q-Former, H heads, d head width, M hidden states of all items.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mt_core.media import Grid
from mt_core.nn import Projector

from ..ragged import pad_items
from . import QFormerConfig


class QFormerProjector(Projector):
    """Queries through the Q-Former, and a projection of each to the model's width."""

    def __init__(self, config: QFormerConfig, *, source: int, target: int) -> None:
        super().__init__()
        self.query_tokens = nn.Parameter(torch.zeros(1, config.queries, config.dim))
        self.qformer = QFormer(config, source)
        self.language_projection = nn.Linear(config.dim, target)

    def forward(self, features_NW: Tensor, features: Sequence[int], grids: Sequence[Grid | None]) -> Tensor:
        """(N, W) -> (M, D)."""
        context_ILW, mask_IL = pad_items(features_NW.float(), features)
        queries_IQC = self.query_tokens.float().expand(len(features), -1, -1)
        seen_IQC = self.qformer(queries_IQC, context_ILW, None if mask_IL is None else mask_IL[:, None, None])
        return self.language_projection(seen_IQC.to(features_NW.dtype)).flatten(0, 1)  # type: ignore[no-any-return]


class Linear32(nn.Linear):
    """A linear layer that computes in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the projection of ``x``, in fp32."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(x, self.weight.float(), bias)


class LayerNorm32(nn.LayerNorm):
    """A layer norm whose scale and shift are in fp32, too."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normed, in fp32."""
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


class QFormer(nn.Module):
    """A norm of the queries, and the layers."""

    def __init__(self, config: QFormerConfig, source: int) -> None:
        super().__init__()
        self.layernorm = LayerNorm32(config.dim, eps=config.norm_eps)
        layers = (
            QFormerLayer(config, source if index % config.cross_every == 0 else None) for index in range(config.depth)
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def forward(self, queries_IQC: Tensor, context_ILW: Tensor, mask_I11L: Tensor | None) -> Tensor:
        """(I, Q, C), (I, L, W) -> (I, Q, C)."""
        x_IQC = self.layernorm(queries_IQC)
        for layer in self.encoder["layer"].children():
            x_IQC = layer(x_IQC, context_ILW, mask_I11L)
        return x_IQC  # type: ignore[no-any-return]


class QFormerLayer(nn.Module):
    """Attention among queries, attention to features of ``source`` channels in some layers, and an MLP; each with a norm behind its sum."""

    def __init__(self, config: QFormerConfig, source: int | None) -> None:
        super().__init__()
        self.attention = Attention(config, config.dim)
        self.crossattention = None if source is None else Attention(config, source)
        self.intermediate_query = nn.ModuleDict({"dense": Linear32(config.dim, config.ffn_dim)})
        self.output_query = NormedSum(config, config.ffn_dim)

    def forward(self, x_IQC: Tensor, context_ILW: Tensor, mask_I11L: Tensor | None) -> Tensor:
        """(I, Q, C), (I, L, W) -> (I, Q, C)."""
        x_IQC = self.attention(x_IQC, x_IQC, None)
        if self.crossattention is not None:
            x_IQC = self.crossattention(x_IQC, context_ILW, mask_I11L)
        inner_IQF = nn.functional.gelu(self.intermediate_query["dense"](x_IQC))
        return self.output_query(inner_IQF, x_IQC)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention of queries to what has ``source`` channels, and the norm behind its sum with them."""

    def __init__(self, config: QFormerConfig, source: int) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        widths = {"query": config.dim, "key": source, "value": source}
        self.attention = nn.ModuleDict({name: Linear32(width, config.dim) for name, width in widths.items()})
        self.output = NormedSum(config, config.dim)

    def forward(self, x_IQC: Tensor, seen_ILW: Tensor, mask_I11L: Tensor | None) -> Tensor:
        """(I, Q, C), (I, L, W) -> (I, Q, C)."""
        q_IHQd, k_IHLd, v_IHLd = (
            self.attention[name](x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for name, x in (("query", x_IQC), ("key", seen_ILW), ("value", seen_ILW))
        )
        out_IHQd = nn.functional.scaled_dot_product_attention(q_IHQd, k_IHLd, v_IHLd, attn_mask=mask_I11L)
        return self.output(out_IHQd.transpose(1, 2).flatten(2), x_IQC)  # type: ignore[no-any-return]


class NormedSum(nn.Module):
    """A projection, added to what came before, normed."""

    def __init__(self, config: QFormerConfig, source: int) -> None:
        super().__init__()
        self.dense = Linear32(source, config.dim)
        self.LayerNorm = LayerNorm32(config.dim, eps=config.norm_eps)

    def forward(self, x: Tensor, before_IQC: Tensor) -> Tensor:
        """Return (I, Q, C)."""
        return self.LayerNorm(self.dense(x) + before_IQC)  # type: ignore[no-any-return]
