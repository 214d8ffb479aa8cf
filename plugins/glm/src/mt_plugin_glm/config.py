"""The shape of a GLM-4 as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mt_core import DecoderConfig


class GlmConfig(DecoderConfig):
    """A decoder's sizes, and what part of each head turns, in pairs of neighbouring channels."""

    rotary_part: float = Field(0.5, gt=0, le=1, description="share of a head's channels that turn (0 to 1)")
    attention_bias: bool = Field(False, description="biases in the projections of queries, keys and values")

    @property
    def rotary_width(self) -> int:
        """Channels of a head that turn."""
        return int(self.head_width * self.rotary_part)

    def faults(self) -> Iterator[str]:
        """Yield the faults of a decoder, and a part of a head that is no whole number of pairs."""
        yield from super().faults()
        if self.rotary_width < 2 or self.rotary_width % 2:
            yield (
                f"rotary_part={self.rotary_part} of {self.head_width} channels is {self.rotary_width}, and rotary positions turn"
                " pairs; choose a share that gives an even number"
            )
