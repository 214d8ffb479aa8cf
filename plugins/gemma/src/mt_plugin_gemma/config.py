"""The shape of a Gemma model, as data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from mt_core import ModelConfig, RopeScaling

_OPTIONS: dict[int, frozenset[str]] = {
    1: frozenset(),
    2: frozenset({"query_scalar", "window", "global_every", "attention_softcap", "final_softcap"}),
    3: frozenset({"query_scalar", "window", "global_every", "final_softcap", "rope_local_theta", "rope_factor"}),
}
"""Keys of each generation that the first does not have."""
_NEEDED = frozenset({"query_scalar", "window", "global_every", "rope_local_theta"})
"""Keys among these without a default."""


class GemmaConfig(ModelConfig):
    """Counts start with ``n_``. The base adds ``vocab_size``, ``max_seq_len``. The head's weight is the embedding's.

    ``generation`` decides the norms: 1 has them before attention and MLP; 2 also after; 3 also on queries and keys.
    """

    generation: Literal[1, 2, 3] = Field(description="1, 2 or 3: which norms a block has, and which options it reads")
    dim: int = Field(gt=0, le=1_048_576, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, le=10_000, description="transformer blocks")
    n_heads: int = Field(gt=0, le=65_536, description="query heads")
    n_kv_heads: int = Field(gt=0, le=65_536, description="key/value heads; n_heads means plain multi-head attention")
    head_dim: int = Field(gt=0, le=65_536, multiple_of=2, description="width of one head (channels)")
    ffn_dim: int = Field(gt=0, le=16_777_216, description="hidden width of the gated MLP (channels)")
    norm_eps: float = Field(1e-6, gt=0, lt=1, description="added to the mean square in RMSNorm")
    query_scalar: float | None = Field(
        None, gt=0, description="scores are divided by the square root of this (channels); in generation 1 of head_dim"
    )
    attention_softcap: float | None = Field(None, gt=0, description="generation 2: scores stay within ± this")
    final_softcap: float | None = Field(None, gt=0, description="generations 2 and 3: logits stay within ± this (nats)")
    window: int | None = Field(
        None, gt=0, description="what a local block sees: this many tokens, the own one included"
    )
    global_every: int | None = Field(
        None, gt=0, description="each so-many-th block is global, the others are local; 1 makes all global"
    )
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths; of global blocks only in 3")
    rope_local_theta: float | None = Field(
        None, gt=1, description="generation 3: base of the rotary wavelengths in local blocks"
    )
    rope_factor: float = Field(
        1.0, ge=1, description="generation 3: positions in global blocks are divided by this (ratio)"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of what attention and MLP add that is set to 0 in training"
    )

    def is_local(self, index: int) -> bool:
        """Return whether the block of this number, from 0, sees its window only."""
        return self.global_every is not None and (index + 1) % self.global_every != 0

    @property
    def head_width(self) -> int:
        """Channels of one head, as shared blocks ask for it."""
        return self.head_dim

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float((self.query_scalar or self.head_dim) ** -0.5)

    @property
    def rope_scaling(self) -> RopeScaling:
        """Return the scaling of global blocks."""
        return RopeScaling() if self.rope_factor == 1 else RopeScaling(type="linear", factor=self.rope_factor)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if faults := [*self._head_faults(), *self._option_faults()]:
            raise ValueError(". Also, ".join(faults))
        return self

    def _head_faults(self) -> Iterator[str]:
        if self.n_heads % self.n_kv_heads:
            yield (
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.n_kv_heads}; "
                f"set n_kv_heads to a divisor, or to {self.n_heads} for plain multi-head attention"
            )

    def _option_faults(self) -> Iterator[str]:
        every = frozenset[str]().union(*_OPTIONS.values())
        fields = type(self).model_fields
        set_ = {name for name in every if getattr(self, name) != fields[name].default}
        if unread := sorted(set_ - _OPTIONS[self.generation]):
            yield (
                f"generation {self.generation} does not read {', '.join(unread)} (it reads"
                f" {', '.join(sorted(_OPTIONS[self.generation])) or 'none of these'}); leave these out, or set another"
                " generation"
            )
        needed = _NEEDED & _OPTIONS[self.generation]
        if missing := sorted(name for name in needed if getattr(self, name) is None):
            yield f"generation {self.generation} needs {', '.join(missing)}; set them as a published size does"
