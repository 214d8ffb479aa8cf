"""Sizes of a decoder, for any family that is built of the blocks in ``mt_core.nn.decoder``. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from mt_core.config.base import ModelConfig
from mt_core.config.rope import RopeScaling, RopeType


class DecoderConfig(ModelConfig):
    """Sizes of a decoder. Counts start with ``n_``; widths are in channels. A family adds fields, and redeclares a field to
    change its default."""

    scalings: ClassVar[tuple[RopeType, ...]] = ("none", "linear", "yarn", "llama3")
    """Types of ``rope_scaling`` that the family has: those that its ``Architecture`` reads."""

    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="transformer blocks")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int = Field(gt=0, le=65_536, description="key/value heads; n_heads means plain multi-head attention")
    head_dim: int | None = Field(
        None, gt=0, le=65_536, description="width of one head (channels); default dim / n_heads"
    )
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of the gated MLP (channels)")
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(default_factory=RopeScaling, description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")

    @property
    def head_width(self) -> int:
        """Channels of one head: ``head_dim``, or ``dim / n_heads``."""
        return self.head_dim if self.head_dim is not None else self.dim // self.n_heads

    @property
    def rotary_width(self) -> int:
        """Channels of a head that turn: all."""
        return self.head_width

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if faults := list(self.faults()):
            raise ValueError(". Also, ".join(faults))
        return self

    def faults(self) -> Iterator[str]:
        """Yield what does not fit together, each fault with its remedy. A family adds its own to these."""
        if self.n_heads % self.n_kv_heads:
            yield (
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; "
                f"set n_kv_heads to a divisor, or to {self.n_heads} for plain multi-head attention"
            )
        if self.head_dim is None and self.dim % self.n_heads:
            yield (
                f"dim={self.dim} is not a multiple of n_heads={self.n_heads}; "
                "set n_heads to a divisor of dim, or set head_dim"
            )
        if self.head_width < 1 or self.head_width % 2:
            yield (
                f"a head has {self.head_width} channels, and rotary positions turn pairs; "
                "set head_dim to an even number, or change dim / n_heads"
            )
        elif self.rotary_width == 2 and self.rope_scaling.type == "dynamic":
            yield (
                "a head has 2 channels, and dynamic scaling divides by the others; "
                "set head_dim to 4 or more, or choose another rope_scaling.type"
            )
        if self.rope_scaling.type not in self.scalings:
            yield f"rope_scaling.type={self.rope_scaling.type!r} is not this family's; use {' or '.join(self.scalings)}"
        sections = self.rope_scaling.sections
        if sections and sum(sections) != self.rotary_width // 2:
            yield (
                f"rope_scaling.sections={list(sections)} are {sum(sections)} pairs of channels, and {self.rotary_width} channels of a head"
                f" turn; give three counts of {self.rotary_width // 2} together"
            )
        for name in ("short_factor", "long_factor"):
            count = len(getattr(self.rope_scaling, name))
            if count and count != self.rotary_width // 2:
                yield (
                    f"rope_scaling.{name} has {count} ratios, and {self.rotary_width} channels of a head turn; "
                    f"give {self.rotary_width // 2}, one for each pair"
                )


Sight = Literal["full", "window"]
"""Reach of a block: the text so far, or its window."""


class WindowedDecoderConfig(DecoderConfig):
    """Sizes of a decoder with windowed attention, in all blocks or by a pattern."""

    window: int | None = Field(
        None, gt=0, description="tokens that a block with a window sees, itself included; none: all see the whole text"
    )
    window_pattern: tuple[Sight, ...] = Field(
        ("window",), min_length=1, description="full or window for the first blocks, repeated over all"
    )

    def faults(self) -> Iterator[str]:
        """Yield faults, also that of a pattern without a window."""
        yield from super().faults()
        if self.window is None and self.window_pattern != ("window",):
            yield f"window_pattern={','.join(self.window_pattern)} without window; set window, or leave window_pattern out"

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return None if self.window_pattern[index % len(self.window_pattern)] == "full" else self.window
