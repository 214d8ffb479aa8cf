"""An MLP of single tokens, which an engine may run in tiles (https://arxiv.org/abs/2506.13996, section 3.1).

Shapes: B rows, T tokens, D model width.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from mt_core.nn.context import BlockContext


class TokenwiseMLP(nn.Module):
    """An MLP that computes tokens independently, so that the engine may limit the tokens per call (``tile_tokens``).

    A subclass writes ``transform``. Every tile is computed again in the backward; weights get one gradient, the sum over tiles.
    """

    tile_tokens: int | None = None
    run_in_tiles: TileRunner | None = None
    """Set by the engine together with ``tile_tokens``."""

    def transform(self, x: Tensor) -> Tensor:
        """(…, D) -> (…, D), a function of each token and the parameters alone."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, context: BlockContext | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D). It reads no context; a mixture of experts in its place does."""
        if self.run_in_tiles is None or self.tile_tokens is None or x_BTD.shape[:-1].numel() <= self.tile_tokens:
            return self.transform(x_BTD)
        return self.run_in_tiles(self, x_BTD)


class TileRunner(Protocol):
    """Runs ``mlp.transform`` on so many tokens at a time as ``mlp.tile_tokens`` says."""

    def __call__(self, mlp: TokenwiseMLP, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        ...
