"""Gated convolutional language model (Dauphin et al. 2016, https://arxiv.org/abs/1612.08083).

Each block adds to its input x the gated linear unit (x * W + b) ⊗ σ(x * V + c), where * is a causal convolution. Unlike
the paper, which normalises weights, a block normalises its input (RMSNorm), as later language models do.

Shapes: B rows, T tokens, D model width, K taps of a kernel, P = K - 1 tokens before the first, S = P + T, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import glu, pad

from mt_core.nn import BlockContext, Layer, RMSNorm, TrainModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import GatedConvConfig


class GatedConv(TrainModel):
    """Embed, gated convolutions, norm, head. The base class gives ``forward``, checkpointing and the cache's length."""

    config: GatedConvConfig
    default_targets = ("conv",)

    def __init__(self, config: GatedConvConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(GatedConvBlock(config, index) for index in range(config.n_layers))
        self.norm = RMSNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def layers(self) -> Sequence[Layer]:
        """See ``TrainModel``. A prefix is the attribute above: parameters keep their names on any layout."""
        blocks = [Layer(f"blocks.{index}", block) for index, block in enumerate(self.blocks)]
        return [Layer("embed", self.embed), *blocks, Layer("norm", self.norm), Layer("lm_head", self.lm_head)]

    def init_tensor(self, name: str, tensor: Tensor, generator: Generator) -> None:
        """Convolutions with variance 1 / fan-in, so that depth and kernel size keep the scale; the rest by default."""
        if name.endswith("conv.weight"):
            tensor.normal_(0.0, tensor.shape[1] ** -0.5, generator=generator)
        else:
            super().init_tensor(name, tensor, generator)

    def flops_per_token(self, length: int) -> float:
        """6 per weight that multiplies (2 forward, 4 backward); ``length`` plays no part, as windows do not grow."""
        dim = self.config.dim
        per_block = dim * self.config.kernel_size * 2 * dim
        return 6.0 * (self.config.n_layers * per_block + dim * self.config.vocab_size)


class GatedConvBlock(nn.Module):
    """A causal convolution under a gated linear unit, added to its input.

    The convolution is a linear map of each token's window. As a plain ``nn.Linear`` it is something that adapters can
    wrap and ZeRO can gather, without knowing this model.
    """

    def __init__(self, config: GatedConvConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.before = config.kernel_size - 1
        self.norm = RMSNorm(config.dim)
        self.conv = nn.Linear(config.kernel_size * config.dim, 2 * config.dim)

    def forward(self, hidden_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        seen_BSD = self._with_past(self.norm(hidden_BTD), context)
        return hidden_BTD + glu(self.conv(windows(seen_BSD, context.positions_BT)), dim=-1)

    def _with_past(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """The inputs with the P before them. In generation the cache keeps these: all the state that a block has."""
        past_BPD = None if context.cache is None else context.cache.get(self.index)
        seen_BSD = pad(x_BTD, (0, 0, self.before, 0)) if past_BPD is None else torch.cat([past_BPD, x_BTD], 1)
        if context.cache is not None:  # a copy, because a slice alone would keep the whole prompt in memory
            context.cache.put(self.index, seen_BSD[:, -self.before :].clone())
        return seen_BSD


def windows(seen_BSD: Tensor, positions_BT: Tensor) -> Tensor:
    """(B, S, D), (B, T) -> (B, T, K * D): a token and the P before it, oldest first, zeros outside its document.

    Positions start at 0 in each document, so the token ``age`` steps back is of the same one where position >= age.
    Filling, unlike a product with a mask, stops even a NaN.
    """
    length = positions_BT.shape[1]
    oldest = seen_BSD.shape[1] - length
    taps_BTKD = torch.stack([seen_BSD[:, k : k + length] for k in range(oldest + 1)], 2)
    age_K = torch.arange(oldest, -1, -1, device=positions_BT.device)
    outside_BTK = positions_BT.unsqueeze(-1) < age_K
    return taps_BTKD.masked_fill(outside_BTK.unsqueeze(-1), 0.0).flatten(2)
