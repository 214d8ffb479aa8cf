"""Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1).

Shapes: B rows, T tokens, S tokens seen (T plus the cache's), D model width, N heads, H width of a head of queries and keys,
W of a head of values, R width of the latents, P channels of a head that have no position and r that turn, H = P + r.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mt_core.nn import BlockContext, RMSNorm, Rotary, rotate, tokens_seen

from .config import DeepseekConfig

LATENT_EPS = 1e-6
"""Added to the mean square in the norms of latents, whatever ``norm_eps`` is (DeepseekV2RMSNorm's default in modeling_deepseek.py)."""


class LatentAttention(nn.Module):
    """Keys and values of all heads come from one narrow latent of a token, which the cache holds in their place.

    Beside it all heads share a key of few channels, which alone turns with the position; queries have as many for it.
    """

    def __init__(self, config: DeepseekConfig, index: int, rotary: Rotary) -> None:
        super().__init__()
        self.index, self.rotary, self.heads, self.scale = index, rotary, config.n_heads, config.scale
        self.config = config
        self.queries = [config.nope_dim, config.rope_dim]
        self.latents = [config.kv_rank, config.rope_dim]
        self.expanded = [config.nope_dim, config.value_dim]
        heads = config.n_heads * sum(self.queries)
        if config.q_rank is None:
            self.q_proj = nn.Linear(config.dim, heads, bias=False)
        else:
            self.q_a_proj = nn.Linear(config.dim, config.q_rank, bias=False)
            self.q_a_layernorm = RMSNorm(config.q_rank, eps=LATENT_EPS)
            self.q_b_proj = nn.Linear(config.q_rank, heads, bias=False)
        self.is_straight = config.q_rank is None
        self.kv_a_proj_with_mqa = nn.Linear(config.dim, sum(self.latents), bias=False)
        self.kv_a_layernorm = RMSNorm(config.kv_rank, eps=LATENT_EPS)
        self.kv_b_proj = nn.Linear(config.kv_rank, config.n_heads * sum(self.expanded), bias=False)
        self.o_proj = nn.Linear(config.n_heads * config.value_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D); a token sees its document up to itself, and what the cache holds."""
        tables = self.rotary.tables(context)
        q_BTNP, turning_BTNr = torch.split(self._queries(x_BTD), self.queries, -1)
        q_BTNH = torch.cat([q_BTNP, rotate(turning_BTNr, tables, interleaved=True)], -1)
        latent_BTR, shared_BTr = torch.split(self.kv_a_proj_with_mqa(x_BTD), self.latents, -1)
        latent_BS1R = self.kv_a_layernorm(latent_BTR).unsqueeze(2)
        shared_BS1r = rotate(shared_BTr.unsqueeze(2), tables, interleaved=True)
        if context.cache is not None:
            latent_BS1R, shared_BS1r = context.cache.append(self.index, latent_BS1R, shared_BS1r)
        k_BSNH, v_BSNW = self._keys_and_values(latent_BS1R, shared_BS1r)
        mixed_BTNW = context.attention(q_BTNH, k_BSNH, v_BSNW, context, scale=self.scale)
        return self.o_proj(mixed_BTNW.flatten(2))  # type: ignore[no-any-return]

    def _queries(self, x_BTD: Tensor) -> Tensor:
        q_BTE = self.q_proj(x_BTD) if self.is_straight else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTD)))
        return q_BTE.unflatten(-1, (self.heads, -1))  # type: ignore[no-any-return]

    def _keys_and_values(self, latent_BS1R: Tensor, shared_BS1r: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, 1, R), (B, S, 1, r) -> (B, S, N, H), (B, S, N, W)."""
        expanded_BSNe = self.kv_b_proj(latent_BS1R.squeeze(2)).unflatten(-1, (self.heads, -1))
        k_BSNP, v_BSNW = torch.split(expanded_BSNe, self.expanded, -1)
        return torch.cat([k_BSNP, shared_BS1r.expand(-1, -1, self.heads, -1)], -1), v_BSNW

    def flops_per_token(self, length: int) -> float:
        """6 per weight, and as much per channel of a key and a value of a token seen: scores and sums, forward and backward."""
        config, heads = self.config, self.heads * sum(self.queries)
        queries = config.dim * heads if config.q_rank is None else config.q_rank * (config.dim + heads)
        latents = config.dim * sum(self.latents) + config.kv_rank * self.heads * sum(self.expanded)
        values = self.heads * config.value_dim
        return 6.0 * (queries + latents + values * config.dim + (heads + values) * tokens_seen(length, None))
