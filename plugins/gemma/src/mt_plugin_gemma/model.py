"""Gemma 1, 2 and 3 (https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2408.00118, https://arxiv.org/abs/2503.19786).

Parameters have the names of Hugging Face's checkpoints.

Shapes: B rows, T tokens, S tokens seen (T plus the cache's), n tokens, D model width, N query heads, K key/value heads,
H head width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from mt_core.nn import BlockContext, RMSNorm, Rotary, TrainModel, geglu, rotate

from .config import GemmaConfig

_INIT_STD = 0.02
_INTO_THE_RESIDUAL = ("o_proj.weight", "down_proj.weight")


class Gemma(TrainModel):
    """Embed, blocks, norm, head. The base class gives ``forward``, checkpointing and the cache's length."""

    config: GemmaConfig
    default_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = Head(config)
        self.lm_head.weight = self.model.embed_tokens.weight

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Norms 0, which scales by 1; the rest normal with deviation 0.02, smaller where it adds to the residual stream.

        There the deviation is divided by sqrt(2 * n_layers), so that depth does not grow it
        (https://openai.com/index/better-language-models, section 2.3).
        """
        if tensor.dim() == 1:
            tensor.zero_()
        elif name.endswith(_INTO_THE_RESIDUAL):
            tensor.normal_(0.0, _INIT_STD / math.sqrt(2 * self.config.n_layers), generator=generator)
        else:
            super().init_tensor(name, tensor, generator)

    def flops_per_token(self, length: int) -> float:
        """6 per weight that multiplies (2 forward, 4 backward), and as much per channel of a key and a value that is seen."""
        c = self.config
        heads, kv_heads = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
        weights = c.dim * (2 * heads + 2 * kv_heads + 3 * c.ffn_dim)
        windows = [c.window if c.is_local(index) else None for index in range(c.n_layers)]
        attention = sum(2 * heads * seen_on_average(length, window) for window in windows)
        return 6.0 * (c.n_layers * weights + attention + c.dim * c.vocab_size)


def seen_on_average(length: int, window: int | None) -> float:
    """Tokens that a token of a row of ``length`` sees, itself included, on average over the row."""
    full = length if window is None else min(length, window)
    return (full * (full + 1) / 2 + (length - full) * full) / length


class Decoder(nn.Module):
    """Holds the parts under the names that checkpoints use; ``TrainModel.layers`` says how they run."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        everywhere = Rotary(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        local = (
            everywhere if config.rope_local_theta is None else Rotary(config.head_dim, theta=config.rope_local_theta)
        )
        self.embed_tokens = Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            Block(config, index, local if config.is_local(index) else everywhere) for index in range(config.n_layers)
        )
        self.norm = norm(config.dim, config)


def norm(width: int, config: GemmaConfig) -> RMSNorm:
    """Gemma's: the weight is what the scale has beyond 1."""
    return RMSNorm(width, eps=config.norm_eps, centred=True)


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


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream; from the second generation on normalised before and after."""

    def __init__(self, config: GemmaConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = Attention(config, index, rotary)
        self.mlp = MLP(config)
        self.input_layernorm = norm(config.dim, config)
        self.post_attention_layernorm = norm(config.dim, config)
        self.has_post_norms = config.generation >= 2
        if self.has_post_norms:
            self.pre_feedforward_layernorm = norm(config.dim, config)
            self.post_feedforward_layernorm = norm(config.dim, config)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D), in the dtype of the input."""
        mixed_BTD = self.self_attn(self.input_layernorm(hidden_BTD), context)
        if not self.has_post_norms:  # the first generation's second norm stands before the MLP, whatever its name says
            hidden_BTD = hidden_BTD + self._drop(mixed_BTD)
            return hidden_BTD + self._drop(self.mlp(self.post_attention_layernorm(hidden_BTD)))
        hidden_BTD = hidden_BTD + self._drop(self.post_attention_layernorm(mixed_BTD))
        added_BTD = self.mlp(self.pre_feedforward_layernorm(hidden_BTD))
        return hidden_BTD + self._drop(self.post_feedforward_layernorm(added_BTD))

    def _drop(self, added_BTD: Tensor) -> Tensor:
        return added_BTD if self.dropout is None else self.dropout(added_BTD)


class Attention(nn.Module):
    """Grouped-query attention (https://arxiv.org/abs/2305.13245) with rotary positions, in a window where it is local."""

    def __init__(self, config: GemmaConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.index, self.width, self.rotary = index, config.head_dim, rotary
        self.scale, self.softcap = config.scale, config.attention_softcap
        self.window = config.window if config.is_local(index) else None
        heads, kv_heads = config.n_heads * self.width, config.n_kv_heads * self.width
        self.q_proj = nn.Linear(config.dim, heads, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_heads, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_heads, bias=False)
        self.o_proj = nn.Linear(heads, config.dim, bias=False)
        self.has_head_norms = config.generation >= 3
        if self.has_head_norms:
            self.q_norm = norm(self.width, config)
            self.k_norm = norm(self.width, config)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D); a token sees its document up to itself, and what the cache holds."""
        q_BTNH, k_BSKH, v_BSKH = (
            project(x_BTD).unflatten(-1, (-1, self.width)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.has_head_norms:
            q_BTNH, k_BSKH = self.q_norm(q_BTNH), self.k_norm(k_BSKH)
        tables = self.rotary.tables(context)
        q_BTNH, k_BSKH = rotate(q_BTNH, tables), rotate(k_BSKH, tables)
        if context.cache is not None:
            k_BSKH, v_BSKH = context.cache.append(self.index, k_BSKH, v_BSKH)
        mixed_BTNH = context.attention(
            q_BTNH, k_BSKH, v_BSKH, context, scale=self.scale, window=self.window, softcap=self.softcap
        )
        return self.o_proj(mixed_BTNH.flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """GeGLU (https://arxiv.org/abs/2002.05202): the gate's GELU times the up projection, projected down."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.down_proj(geglu(self.gate_proj(x_BTD), self.up_proj(x_BTD)))  # type: ignore[no-any-return]
