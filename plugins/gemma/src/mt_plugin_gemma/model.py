"""Gemma 1, 2 and 3 (https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2408.00118, https://arxiv.org/abs/2503.19786).

Parameters have the names of Hugging Face's checkpoints.

Shapes: B rows, T tokens, n tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Generator, Tensor, nn

from mt_core.nn import (
    Block,
    DecoderModel,
    GatedMLP,
    GroupedQueryAttention,
    NormNames,
    RMSNorm,
    Rotary,
    geglu,
)

from .config import GemmaConfig

NORMS_ON_BOTH_SIDES = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
"""From the second generation on. In the first one the second norm stands before the MLP, whatever its name says."""


class Gemma(DecoderModel):
    """Blocks of attention and gated MLP, with norms whose weights begin at 0. The base class gives the rest."""

    config: GemmaConfig

    def __init__(self, config: GemmaConfig) -> None:
        everywhere = Rotary(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        local = (
            everywhere if config.rope_local_theta is None else Rotary(config.head_dim, theta=config.rope_local_theta)
        )
        super().__init__(
            config,
            lambda index: build_block(config, local if config.is_local(index) else everywhere, index),
            embedding=Embedding(config.vocab_size, config.dim),
            norm=RMSNorm(config.dim, eps=config.norm_eps, centred=True),
            head=Head(config),
            tied=True,
        )

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Norms 0, which scales by 1; the rest as in the base class."""
        if tensor.dim() == 1:
            tensor.zero_()
        else:
            super().init_tensor(name, tensor, generator)


def build_block(config: GemmaConfig, rotary: Rotary, index: int) -> Block:
    """Build one block: from the second generation on normed before and behind, from the third also queries and keys."""
    norm = partial(RMSNorm, eps=config.norm_eps, centred=True)
    attention = GroupedQueryAttention(
        config,
        index,
        rotary,
        qk_norm="head" if config.generation >= 3 else None,
        norm=norm,
        scale=config.scale,
        window=config.window if config.is_local(index) else None,
        softcap=config.attention_softcap,
    )
    mlp = GatedMLP(config.dim, config.ffn_dim, gate=geglu)
    names = NORMS_ON_BOTH_SIDES if config.generation >= 2 else NormNames()
    return Block(attention, mlp, dim=config.dim, norm=norm, names=names, dropout=config.dropout)


class Embedding(nn.Embedding):
    """Multiplied by the square root of its width, rounded to the dtype of the weights as Google's training did."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        return super().forward(input) * round_to(self.embedding_dim**0.5, self.weight.dtype)


def round_to(number: float, dtype: torch.dtype) -> float:
    """The nearest number of this dtype, without a tensor that a device would wait for; exponents are not bounded."""
    bits = 1 - round(math.log2(torch.finfo(dtype).eps))
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)


class Head(nn.Linear):
    """Logits, soft-capped where the config says so."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__(config.dim, config.vocab_size, bias=False)
        self.softcap = config.final_softcap

    def forward(self, input: Tensor) -> Tensor:
        """(n, D) -> (n, V)."""
        logits_nV = super().forward(input)
        return logits_nV if self.softcap is None else torch.tanh(logits_nV / self.softcap) * self.softcap
