"""The shape of a SmolLM3 as a typed config. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from mt_core import WindowedDecoderConfig


class SmolLMConfig(WindowedDecoderConfig):
    """A decoder's sizes, which blocks know no positions (https://arxiv.org/abs/2501.18795), and which have a window, if any has."""

    rope_theta: float = Field(2e6, gt=1, description="base of the rotary wavelengths")
    tie_embeddings: bool = Field(True, description="the head's weight is the embedding's")
    no_rope_every: int | None = Field(
        4, gt=0, description="each so-many-th block turns no queries and keys; none: all blocks do"
    )

    def has_rope(self, index: int) -> bool:
        """Whether the block of this number, from 0, has rotary positions."""
        return self.no_rope_every is None or (index + 1) % self.no_rope_every != 0
