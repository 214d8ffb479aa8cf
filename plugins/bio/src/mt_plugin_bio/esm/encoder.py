"""ESM-2 (https://doi.org/10.1126/science.ade2574) and Nucleotide Transformer v2 (https://doi.org/10.1038/s41592-024-02523-z).

Norms stand before attention and MLP, and one behind the last block; rotary positions count from the start of each item.
Names of parameters are those of the published checkpoints behind ``esm.``.

Shapes: I items, L ids of the longest, N ids of all items, D width, H heads, W width of a head, F frequencies (W / 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt_core.nn import Encoder
from mt_plugin_bio.ragged import Ragged
from mt_plugin_bio.sequences import AttentionShape

from .config import EsmConfig, EsmForm
from .frequencies import THETA


class Seen(NamedTuple):
    """Inputs that all blocks share: cosine and sine of each place's angles, and which places an item has."""

    cos_LF: Tensor
    sin_LF: Tensor
    mask_I11L: Tensor


class EsmEncoder(Encoder):
    """Ids to hidden states, one for each."""

    def __init__(self, config: EsmConfig) -> None:
        super().__init__()
        self.shape, self.scale, self.half_frequencies = config.shape, config.form.scale, config.half_frequencies
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(config.rows, self.shape.dim)})
        self.encoder = Blocks(config)

    def forward(self, inputs: Mapping[str, Tensor], features: Sequence[int]) -> Tensor:
        """``{"ids": (N,)}`` -> (N, D)."""
        ragged = Ragged(features, inputs["ids"].device)
        x_ILD = ragged.pad(self.embeddings["word_embeddings"](inputs["ids"]) * self.scale)
        frequencies_F = rotary_frequencies(self.shape.dim // self.shape.n_heads, half=self.half_frequencies)
        angles_LF = torch.arange(ragged.longest).unsqueeze(1) * frequencies_F
        cos_LF, sin_LF = (table.to(x_ILD.device) for table in (angles_LF.cos(), angles_LF.sin()))
        return ragged.flatten(self.encoder(x_ILD, Seen(cos_LF, sin_LF, ragged.mask()[:, None, None])))


def rotary_frequencies(width: int, *, half: bool) -> Tensor:
    """(F,) angles of one place, in fp32."""
    frequencies_F = 1.0 / THETA ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width)
    return frequencies_F.half().float() if half else frequencies_F


def rotate(x_IHLW: Tensor, seen: Seen) -> Tensor:
    """Turn channel i with channel i + F, in fp32 at least."""
    first, second = x_IHLW.to(torch.promote_types(x_IHLW.dtype, torch.float32)).chunk(2, -1)
    cos_LF, sin_LF = seen.cos_LF, seen.sin_LF
    return torch.cat([first * cos_LF - second * sin_LF, second * cos_LF + first * sin_LF], -1).to(x_IHLW.dtype)


class Blocks(nn.Module):
    """Blocks one after another and, behind the last of the model, a norm."""

    def __init__(self, config: EsmConfig) -> None:
        super().__init__()
        shape, form = config.shape, config.form
        self.layer = nn.ModuleList(EsmBlock(shape, form) for _ in range(config.blocks))
        self.emb_layer_norm_after = nn.LayerNorm(shape.dim, eps=form.eps) if config.has_all_blocks else nn.Identity()

    def forward(self, x_ILD: Tensor, seen: Seen) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        for block in self.layer:
            x_ILD = block(x_ILD, seen)
        return self.emb_layer_norm_after(x_ILD)  # type: ignore[no-any-return]


class EsmBlock(nn.Module):
    """x += attention(LN x), then x += MLP(LN x)."""

    def __init__(self, shape: AttentionShape, form: EsmForm) -> None:
        super().__init__()
        inner = 2 * shape.ffn_dim if form.gated else shape.ffn_dim
        self.gated = form.gated
        self.attention = Attention(shape, form)
        self.LayerNorm = nn.LayerNorm(shape.dim, eps=form.eps)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(shape.dim, inner, bias=not form.gated)})
        self.output = nn.ModuleDict({"dense": nn.Linear(shape.ffn_dim, shape.dim, bias=not form.gated)})

    def forward(self, x_ILD: Tensor, seen: Seen) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        x_ILD = self.attention(x_ILD, seen)
        hidden = self.intermediate["dense"](self.LayerNorm(x_ILD))
        return x_ILD + self.output["dense"](swiglu(hidden) if self.gated else F.gelu(hidden))  # type: ignore[no-any-return]


def swiglu(hidden: Tensor) -> Tensor:
    """(…, 2 K) -> (…, K): the first half activates the second."""
    first, second = hidden.chunk(2, -1)
    return F.silu(first) * second


class Attention(nn.Module):
    """x + dense(attention(LN x)), to both sides."""

    def __init__(self, shape: AttentionShape, form: EsmForm) -> None:
        super().__init__()
        self.n_heads = shape.n_heads
        self.self = nn.ModuleDict({name: nn.Linear(shape.dim, shape.dim) for name in ("query", "key", "value")})
        self.output = nn.ModuleDict({"dense": nn.Linear(shape.dim, shape.dim)})
        self.LayerNorm = nn.LayerNorm(shape.dim, eps=form.eps)

    def forward(self, x_ILD: Tensor, seen: Seen) -> Tensor:
        """(I, L, D) -> (I, L, D)."""
        normed = self.LayerNorm(x_ILD)
        q, k, v = (
            self.self[name](normed).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        found_IHLW = F.scaled_dot_product_attention(rotate(q, seen), rotate(k, seen), v, attn_mask=seen.mask_I11L)
        return x_ILD + self.output["dense"](found_IHLW.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]
