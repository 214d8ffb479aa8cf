"""The shape of a gpt-oss as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from mt_core import DecoderConfig, ExpertLayout


class GptOssConfig(DecoderConfig):
    """Counts start with ``n_``; widths are in channels. Source: https://arxiv.org/abs/2508.10925, section 2."""

    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of one expert (channels)")
    n_experts: int = Field(gt=0, le=65_536, description="experts of a block")
    top_k: int = Field(4, gt=0, le=65_536, description="experts that each token goes to")
    swiglu_alpha: float = Field(1.702, gt=0, description="factor in the sigmoid of the experts' activation (ratio)")
    swiglu_limit: float = Field(7.0, gt=0, description="what goes into the experts' activation is cut off at ± this")
    window: int = Field(128, gt=0, description="tokens that a local block sees, itself included")
    global_every: int = Field(
        2, gt=0, description="each so-many-th block is global, the others have the window; 1 makes all global"
    )
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(150_000.0, gt=1, description="base of the rotary wavelengths")

    def faults(self) -> Iterator[str]:
        """Yield the faults of a decoder, and those of its experts."""
        yield from super().faults()
        if self.top_k > self.n_experts:
            yield f"top_k={self.top_k} of n_experts={self.n_experts}; set top_k to {self.n_experts} or less"

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return self.window if (index + 1) % self.global_every else None

    @property
    def expert_layout(self) -> ExpertLayout:
        """How a block's experts are stored."""
        return ExpertLayout(
            n_experts=self.n_experts,
            width=self.dim,
            hidden=self.ffn_dim,
            interleaved=True,
            transposed=True,
            bias=True,
        )

    @property
    def expert_layouts(self) -> dict[str, ExpertLayout]:
        """How each block's experts are stored, by the name of the module that has them."""
        return {f"model.layers.{index}.mlp.experts": self.expert_layout for index in range(self.n_layers)}
