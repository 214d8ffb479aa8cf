"""DNABERT-2 (https://arxiv.org/abs/2306.15006): MosaicBERT's blocks (https://arxiv.org/abs/2312.17482) with ALiBi to both sides
(https://arxiv.org/abs/2108.12409). No token has a position of its own, and every one sees all others of its item.

Names of parameters are those of the published checkpoint behind ``bert.``.

Shapes: I items, L ids of the longest, N ids of all items, D width, H heads, W width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt_core.nn import Encoder
from mt_plugin_bio.ragged import Ragged
from mt_plugin_bio.sequences import AttentionShape

from .config import DNABERT2Config

EPS = 1e-12


class DNABERT2(Encoder):
    """Ids to hidden states, one for each."""

    def __init__(self, config: DNABERT2Config) -> None:
        super().__init__()
        shape = config.shape
        self.embeddings = Embeddings(config.rows, shape.dim)
        self.encoder = Blocks(shape, config.blocks)
        self.n_heads = shape.n_heads

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``{"ids": (N,)}`` -> (N, D)."""
        ragged = Ragged(features, inputs["ids"].device)
        x_ILD = ragged.pad(self.embeddings(inputs["ids"]))
        bias_IHLL = attention_bias(ragged, self.n_heads, torch.promote_types(x_ILD.dtype, torch.float32)).to(
            x_ILD.dtype
        )
        return ragged.flatten(self.encoder(x_ILD, bias_IHLL))


def attention_bias(ragged: Ragged, n_heads: int, dtype: torch.dtype) -> Tensor:
    """(I, H, L, L): −slope · |i − j|, and −∞ for what is behind the end of an item."""
    places_L = torch.arange(ragged.longest, device=ragged.places_N.device)
    distance_LL = (places_L[:, None] - places_L[None]).abs()
    slopes_H = torch.tensor(slopes(n_heads), dtype=dtype, device=places_L.device)
    bias_HLL = -slopes_H[:, None, None] * distance_LL
    return bias_HLL.masked_fill(~ragged.mask()[:, None, None], -math.inf)


def slopes(n_heads: int) -> list[float]:
    """Slopes of the heads: powers of 2^(−8/n) for n a power of two; for another number, those between are behind them."""
    whole = 2 ** int(math.log2(n_heads))
    first = [2 ** (-8 / whole * head) for head in range(1, whole + 1)]
    between = [2 ** (-4 / whole * head) for head in range(1, 2 * whole, 2)]
    return first + between[: n_heads - whole]


class Embeddings(nn.Module):
    """Rows of the ids, and of the only type that they have, normed."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(rows, dim)
        self.token_type_embeddings = nn.Embedding(2, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=EPS)

    def forward(self, ids_N: Tensor) -> Tensor:
        """(N,) -> (N, D)."""
        types = self.token_type_embeddings(torch.zeros_like(ids_N))
        return self.LayerNorm(self.word_embeddings(ids_N) + types)  # type: ignore[no-any-return]


class Blocks(nn.Module):
    """Blocks one after another, under the published name ``layer``."""

    def __init__(self, shape: AttentionShape, blocks: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertBlock(shape) for _ in range(blocks))

    def forward(self, x_ILD: Tensor, bias_IHLL: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        for block in self.layer:
            x_ILD = block(x_ILD, bias_IHLL)
        return x_ILD


class BertBlock(nn.Module):
    """Attention and MLP, each with a norm behind its residual."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.mlp = GatedMLP(shape)

    def forward(self, x_ILD: Tensor, bias_IHLL: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        return self.mlp(self.attention(x_ILD, bias_IHLL))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """LN(x + dense(attention(x))): scores are q · k / √W with the bias added."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.n_heads = shape.n_heads
        self.self = nn.ModuleDict({"Wqkv": nn.Linear(shape.dim, 3 * shape.dim)})
        self.output = nn.ModuleDict(
            {"dense": nn.Linear(shape.dim, shape.dim), "LayerNorm": nn.LayerNorm(shape.dim, eps=EPS)}
        )

    def forward(self, x_ILD: Tensor, bias_IHLL: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        heads = self.self["Wqkv"](x_ILD).unflatten(-1, (3, self.n_heads, -1))
        q_IHLW, k_IHLW, v_IHLW = heads.permute(2, 0, 3, 1, 4)
        seen_IHLW = F.scaled_dot_product_attention(q_IHLW, k_IHLW, v_IHLW, attn_mask=bias_IHLL)
        seen_ILD = seen_IHLW.transpose(1, 2).flatten(2)
        return self.output["LayerNorm"](x_ILD + self.output["dense"](seen_ILD))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """LN(x + wo(gelu(a) · b)), where [a; b] come from one matrix."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(shape.dim, 2 * shape.ffn_dim, bias=False)
        self.wo = nn.Linear(shape.ffn_dim, shape.dim)
        self.layernorm = nn.LayerNorm(shape.dim, eps=EPS)

    def forward(self, x_ILD: Tensor) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        a, b = self.gated_layers(x_ILD).chunk(2, -1)
        return self.layernorm(x_ILD + self.wo(F.gelu(a) * b))  # type: ignore[no-any-return]
