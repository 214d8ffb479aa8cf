"""Llama 1, 2 and 3.x (https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2307.09288, https://arxiv.org/abs/2407.21783).

Parameters have the names of Hugging Face's checkpoints.

Shapes: B rows, T tokens, S tokens seen (T plus the cache's), D model width, N query heads, K key/value heads, H head
width, M hidden width of the MLP.
"""

from __future__ import annotations

import math

from torch import Generator, Tensor, nn

from mt_core.nn import BlockContext, RMSNorm, Rotary, TrainModel, rotate, swiglu

from .config import LlamaConfig

_INIT_STD = 0.02
_INTO_THE_RESIDUAL = ("o_proj.weight", "down_proj.weight")


class Llama(TrainModel):
    """Embed, blocks, norm, head. The base class gives ``forward``, checkpointing and the cache's length."""

    config: LlamaConfig
    default_targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        # Dynamic scaling takes the length of a whole row, and rows of one batch have different ones.
        self.ragged_batches = config.rope_scaling.type != "dynamic"
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Normal with deviation 0.02; what adds to the residual stream is divided by sqrt(2 * n_layers).

        The scale of GPT-2 (https://openai.com/index/better-language-models, section 2.3), so that depth does not grow it.
        """
        if name.endswith(_INTO_THE_RESIDUAL):
            tensor.normal_(0.0, _INIT_STD / math.sqrt(2 * self.config.n_layers), generator=generator)
        else:
            super().init_tensor(name, tensor, generator)

    def flops_per_token(self, length: int) -> float:
        """6 per weight that multiplies (2 forward, 4 backward), and as much per channel of a key and a value that is seen.

        A token of a row of ``length`` sees (length + 1) / 2 others on average: attention is causal.
        """
        c = self.config
        heads, kv_heads = c.n_heads * c.head_width, c.n_kv_heads * c.head_width
        weights = c.dim * (2 * heads + 2 * kv_heads + 3 * c.ffn_dim)
        attention = 2 * heads * (length + 1) / 2
        return 6.0 * (c.n_layers * (weights + attention) + c.dim * c.vocab_size)


class Decoder(nn.Module):
    """Holds the parts under the names that checkpoints use; ``TrainModel.layers`` says how they run."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        rotary = Rotary(config.head_width, theta=config.rope_theta, scaling=config.rope_scaling)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config, index, rotary) for index in range(config.n_layers))
        self.norm = RMSNorm(config.dim, eps=config.norm_eps)


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream from a normalised copy of it."""

    def __init__(self, config: LlamaConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = Attention(config, index, rotary)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.dim, eps=config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.dim, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D), in the dtype of the input."""
        hidden_BTD = hidden_BTD + self._drop(self.self_attn(self.input_layernorm(hidden_BTD), context))
        return hidden_BTD + self._drop(self.mlp(self.post_attention_layernorm(hidden_BTD)))

    def _drop(self, added_BTD: Tensor) -> Tensor:
        return added_BTD if self.dropout is None else self.dropout(added_BTD)


class Attention(nn.Module):
    """Grouped-query attention (https://arxiv.org/abs/2305.13245) with rotary positions."""

    def __init__(self, config: LlamaConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.index, self.width, self.rotary = index, config.head_width, rotary
        heads, kv_heads, bias = config.n_heads * self.width, config.n_kv_heads * self.width, config.attention_bias
        self.q_proj = nn.Linear(config.dim, heads, bias=bias)
        self.k_proj = nn.Linear(config.dim, kv_heads, bias=bias)
        self.v_proj = nn.Linear(config.dim, kv_heads, bias=bias)
        self.o_proj = nn.Linear(heads, config.dim, bias=bias)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D); a token sees its document up to itself, and what the cache holds."""
        tables = self.rotary.tables(context)
        q_BTNH = rotate(self._heads(self.q_proj(x_BTD)), tables)
        k_BSKH = rotate(self._heads(self.k_proj(x_BTD)), tables)
        v_BSKH = self._heads(self.v_proj(x_BTD))
        if context.cache is not None:
            k_BSKH, v_BSKH = context.cache.append(self.index, k_BSKH, v_BSKH)
        mixed_BTNH = context.attention(q_BTNH, k_BSKH, v_BSKH, context)
        return self.o_proj(mixed_BTNH.flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.view(*x_BTE.shape[:-1], -1, self.width)


class MLP(nn.Module):
    """SwiGLU (https://arxiv.org/abs/2002.05202): the gate's SiLU times the up projection, projected down."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=config.mlp_bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.down_proj(swiglu(self.gate_proj(x_BTD), self.up_proj(x_BTD)))  # type: ignore[no-any-return]
