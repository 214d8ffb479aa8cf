"""The shape of an OLMo as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mt_core import WindowedDecoderConfig


class OlmoConfig(WindowedDecoderConfig):
    """Both generations norm queries and keys over all heads, and what attention and MLP give. Generation 3 has windows, and
    stretches positions in the other blocks only."""

    generation: Literal[2, 3] = Field(description="2: OLMo 2; 3: OLMo 3, with windows")
    rope_theta: float = Field(500_000.0, gt=1, description="base of the rotary wavelengths")

    def faults(self) -> Iterator[str]:
        """Generation 3 has a window, and no other."""
        yield from super().faults()
        if self.generation == 2 and self.window is not None:
            yield f"window={self.window} in generation 2, which has none; leave it out, or set generation to 3"
        if self.generation == 3 and self.window is None:
            yield "generation 3 without window; set window (tokens), as published sizes do"
