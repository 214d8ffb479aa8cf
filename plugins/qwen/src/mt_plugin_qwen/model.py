"""Qwen 2.5 (https://arxiv.org/abs/2412.15115) and Qwen 3 (https://arxiv.org/abs/2505.09388), dense.

Names of parameters are those of the published checkpoints. Shapes: B rows, T tokens, S tokens with those in the cache,
D model width, E width of all heads, N query heads, K key/value heads, H head width.
"""

from __future__ import annotations

from torch import Tensor, nn

from mt_core.nn import BlockContext, RMSNorm, Rotary, TrainModel, rotate, swiglu

from .config import QwenConfig


class Qwen(TrainModel):
    """Embed, blocks, norm, head. The base class gives ``forward``."""

    config: QwenConfig
    default_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def flops_per_token(self, length: int) -> float:
        """The weights' share, and 12 per channel of a head and token seen: scores and sums, forward and backward."""
        config = self.config
        seen = sum(seen_on_average(length, config.window_of(index)) for index in range(config.n_layers))
        return super().flops_per_token(length) + 12 * config.n_heads * config.head_dim * seen


def seen_on_average(length: int, window: int | None) -> float:
    """Tokens that a token of a row of ``length`` attends to, itself included, on average over the row."""
    reach = min(length, window or length)
    return reach - reach * (reach - 1) / (2 * length)


class Decoder(nn.Module):
    """Holds the parts under their names; ``TrainModel.layers`` says how they run."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        rotary = Rotary(config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config, index, rotary) for index in range(config.n_layers))
        self.norm = RMSNorm(config.dim, eps=config.norm_eps)


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream from a normalised copy of it."""

    def __init__(self, config: QwenConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = Attention(config, index, rotary)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.dim, eps=config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.dim, eps=config.norm_eps)

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden_BTD = hidden_BTD + self.self_attn(self.input_layernorm(hidden_BTD), context)
        added_BTD: Tensor = self.mlp(self.post_attention_layernorm(hidden_BTD))
        return hidden_BTD + added_BTD


class Attention(nn.Module):
    """Grouped queries with rotary positions; biases in generation 2, norms of each head in generation 3."""

    def __init__(self, config: QwenConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.index, self.width, self.rotary = index, config.head_dim, rotary
        self.window = config.window_of(index)
        heads, kv_heads = config.n_heads * self.width, config.n_kv_heads * self.width
        bias, normed = config.generation == 2, config.generation == 3
        self.q_proj = nn.Linear(config.dim, heads, bias=bias)
        self.k_proj = nn.Linear(config.dim, kv_heads, bias=bias)
        self.v_proj = nn.Linear(config.dim, kv_heads, bias=bias)
        self.o_proj = nn.Linear(heads, config.dim, bias=False)
        self.q_norm = RMSNorm(self.width, eps=config.norm_eps) if normed else nn.Identity()
        self.k_norm = RMSNorm(self.width, eps=config.norm_eps) if normed else nn.Identity()

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        tables = self.rotary.tables(context)
        q_BTNH = rotate(self.q_norm(self._heads(self.q_proj(x_BTD))), tables)
        k_BSKH = rotate(self.k_norm(self._heads(self.k_proj(x_BTD))), tables)
        v_BSKH = self._heads(self.v_proj(x_BTD))
        if context.cache is not None:
            k_BSKH, v_BSKH = context.cache.append(self.index, k_BSKH, v_BSKH)
        heads_BTNH = context.attention(q_BTNH, k_BSKH, v_BSKH, context, window=self.window)
        out_BTD: Tensor = self.o_proj(heads_BTNH.flatten(2))
        return out_BTD

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.view(*x_BTE.shape[:-1], -1, self.width)


class MLP(nn.Module):
    """The gate's SiLU times the up projection, projected down."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        out_BTD: Tensor = self.down_proj(swiglu(self.gate_proj(x_BTD), self.up_proj(x_BTD)))
        return out_BTD
