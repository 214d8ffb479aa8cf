"""The shape of a Qwen as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mt_core import DecoderConfig

SCALINGS = ("none", "linear", "yarn", "llama3")
"""All but ``dynamic``, which no Qwen was made with."""


class QwenConfig(DecoderConfig):
    """Generation 2 (Qwen 2 and 2.5, https://arxiv.org/abs/2412.15115) has biases in the projections of queries, keys and
    values; generation 3 (https://arxiv.org/abs/2505.09388) has none, and a norm on each head of queries and keys.
    """

    generation: Literal[2, 3] = Field(description="2: Qwen 2 and 2.5; 3: Qwen 3")
    head_dim: int = Field(gt=0, le=65_536, description="width of one head (channels)")
    rope_theta: float = Field(1e6, gt=1, description="base of the rotary wavelengths")
    window: int | None = Field(None, gt=0, description="tokens that a block with a window sees, itself included")
    window_from: int = Field(0, ge=0, description="first block with the window (index); those before it see all")

    def faults(self) -> Iterator[str]:
        """The windows, and the scaling of positions."""
        yield from super().faults()
        if self.window is None and self.window_from:
            yield f"window_from={self.window_from} without window; set window, or leave window_from out"
        if self.window is not None and self.window_from >= self.n_layers:
            yield (
                f"window_from={self.window_from} leaves no block with window={self.window}: "
                f"there are n_layers={self.n_layers}; set window_from below it, or window to none"
            )
        if self.rope_scaling.type not in SCALINGS:
            yield f"rope_scaling.type={self.rope_scaling.type!r} is not Qwen's; use one of {SCALINGS}"

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return self.window if index >= self.window_from else None
