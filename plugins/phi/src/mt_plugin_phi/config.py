"""The shape of a Phi as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mt_core import WindowedDecoderConfig


class PhiConfig(WindowedDecoderConfig):
    """A decoder's sizes, and what part of each head turns. A window is on all blocks."""

    scalings = ("none", "longrope")
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rotary_part: float = Field(1.0, gt=0, le=1, description="share of a head's channels that turn (0 to 1)")

    @property
    def rotary_width(self) -> int:
        """Channels of a head that turn."""
        return int(self.head_width * self.rotary_part)

    def faults(self) -> Iterator[str]:
        """Channels turn in pairs, and blocks are alike."""
        yield from super().faults()
        if self.rotary_width < 2 or self.rotary_width % 2:
            yield (
                f"rotary_part={self.rotary_part} of {self.head_width} channels is {self.rotary_width}, and rotary positions turn"
                " pairs; choose a share that gives an even number"
            )
        if self.window_pattern != ("window",):
            yield "window_pattern, and all blocks of a Phi are alike; leave it out"
