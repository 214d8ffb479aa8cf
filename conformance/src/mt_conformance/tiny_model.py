"""The kit's own model. Shapes: B rows, T tokens, D model width, N heads, H head width."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mt_conformance.tiny_config import TinyConfig
from mt_core.nn import BlockContext, Layer, RMSNorm, TrainModel, swiglu

HEADS = 2


class TinyModel(TrainModel):
    """Embed, blocks, norm, head; positions are not told apart but by causality, which is enough to train."""

    default_targets = ("qkv_proj", "o_proj", "up_proj", "down_proj")

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(TinyBlock(config.dim, index) for index in range(config.n_layers))
        self.norm = RMSNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def layers(self) -> Sequence[Layer]:
        """See ``TrainModel``."""
        blocks = [Layer(f"blocks.{index}", block) for index, block in enumerate(self.blocks)]
        return [Layer("embed", self.embed), *blocks, Layer("norm", self.norm), Layer("lm_head", self.lm_head)]


class TinyBlock(nn.Module):
    """Attention, then a gated MLP, each added to its input."""

    def __init__(self, dim: int, index: int) -> None:
        super().__init__()
        self.index = index
        self.norm = RMSNorm(dim)
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.up_proj = nn.Linear(dim, 4 * dim)
        self.down_proj = nn.Linear(2 * dim, dim)

    def forward(self, x_BTD: Tensor, context: BlockContext) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv_proj(self.norm(x_BTD)).chunk(3, -1))
        if context.cache is not None:
            k, v = context.cache.append(self.index, k, v)
        x_BTD = x_BTD + self.o_proj(context.attention(q, k, v, context).flatten(2))
        gate, up = self.up_proj(x_BTD).chunk(2, -1)
        return x_BTD + self.down_proj(swiglu(gate, up))  # type: ignore[no-any-return]
