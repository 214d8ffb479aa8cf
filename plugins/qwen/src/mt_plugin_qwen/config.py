"""The shape of a Qwen as a typed config. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mt_core import DecoderConfig, ExpertLayout, RouterOptions


class QwenConfig(DecoderConfig):
    """Generation 2 (Qwen 2 and 2.5, https://arxiv.org/abs/2412.15115) has biases in the projections of queries, keys and
    values; generation 3 (https://arxiv.org/abs/2505.09388) has none, and a norm on each head of queries and keys. With ``n_experts`` a
    block of generation 3 has a mixture of experts in the place of its MLP.
    """

    generation: Literal[2, 3] = Field(description="2: Qwen 2 and 2.5; 3: Qwen 3")
    head_dim: int = Field(gt=0, le=65_536, description="width of one head (channels)")
    rope_theta: float = Field(1e6, gt=1, description="base of the rotary wavelengths")
    window: int | None = Field(None, gt=0, description="tokens that a block with a window sees, itself included")
    window_from: int = Field(0, ge=0, description="first block with the window (index); those before it see all")

    n_experts: int | None = Field(None, gt=0, le=65_536, description="experts of a block; none is a dense model")
    top_k: int = Field(8, gt=0, le=65_536, description="experts of a token")
    expert_dim: int = Field(768, gt=0, le=16_777_216, description="hidden width of an expert (channels)")
    normalise: bool = Field(True, description="the weights of a token's experts are divided by their sum")
    expert_step: int = Field(1, gt=0, description="every so many blocks one has experts; the others have an MLP")
    dense_blocks: tuple[int, ...] = Field((), description="further blocks (indices) that have an MLP")
    balance: float = Field(
        0.0, ge=0, description="coefficient of the balance loss, which is 1 a token and block where the load is even"
    )

    def faults(self) -> Iterator[str]:
        """The windows and the experts."""
        yield from super().faults()
        yield from self._mixture_faults()
        if self.window is None and self.window_from:
            yield f"window_from={self.window_from} without window; set window, or leave window_from out"
        if self.window is not None and self.window_from >= self.n_layers:
            yield (
                f"window_from={self.window_from} leaves no block with window={self.window}: "
                f"there are n_layers={self.n_layers}; set window_from below it, or window to none"
            )

    def _mixture_faults(self) -> Iterator[str]:
        if self.n_experts is None:
            for name in ("top_k", "expert_dim", "normalise", "expert_step", "dense_blocks", "balance"):
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    yield f"{name}={value} is for a mixture; set n_experts, or leave it out"
            return
        if self.generation != 3:
            yield f"n_experts={self.n_experts} in generation {self.generation}; the mixtures here are Qwen 3's, set generation=3"
        if not self.expert_layouts:
            yield (
                f"expert_step={self.expert_step} and dense_blocks={self.dense_blocks} leave no block with experts: "
                f"there are n_layers={self.n_layers}; set expert_step lower, or n_experts to none"
            )
        if self.window_from:
            yield f"window_from={self.window_from} in a mixture, all of whose blocks have the window; set it to 0"
        try:
            self.router()
        except ValueError as error:
            yield str(error)

    def router(self) -> RouterOptions:
        """How the experts of a token are chosen. Raises ``ValueError`` for sizes that do not fit."""
        assert self.n_experts is not None, "a dense model has no router"
        return RouterOptions(n_experts=self.n_experts, top_k=self.top_k, normalise=self.normalise)

    @property
    def expert_layouts(self) -> dict[str, ExpertLayout]:
        """How each block's experts are stored, by the name of the module that has them; empty for a dense model."""
        if self.n_experts is None:
            return {}
        layout = ExpertLayout(n_experts=self.n_experts, width=self.dim, hidden=self.expert_dim)
        return {f"model.layers.{i}.mlp.experts": layout for i in range(self.n_layers) if self.is_mixture(i)}

    def is_mixture(self, index: int) -> bool:
        """Return whether a block has experts."""
        return self.n_experts is not None and index not in self.dense_blocks and (index + 1) % self.expert_step == 0

    def window_of(self, index: int) -> int | None:
        """The window of one block (tokens); ``None`` where it sees the whole text."""
        return self.window if index >= self.window_from else None
