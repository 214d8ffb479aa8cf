"""The shape of a Llama model, as data. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core import ModelConfig, MtConfig

RopeType = Literal["none", "linear", "dynamic", "yarn", "llama3"]

_ORIGINAL = "original_max_seq_len"
_READS: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor", _ORIGINAL}),
    "yarn": frozenset(
        {"factor", _ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
    ),
    "llama3": frozenset({"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"}),
}


class RopeScaling(MtConfig):
    """How rotary positions are stretched beyond the length that the model was first trained on.

    A parameter that the chosen type does not read is an error. Sources: linear https://arxiv.org/abs/2306.15595,
    dynamic https://arxiv.org/abs/2309.00071 (appendix B.3), yarn https://arxiv.org/abs/2309.00071, llama3
    https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py (``apply_scaling``).
    """

    type: RopeType = Field("none", description="none, linear, dynamic (NTK), yarn or llama3")
    factor: float = Field(1.0, ge=1.0, description="how many times longer than the original length (ratio)")
    original_max_seq_len: int | None = Field(
        None, gt=0, description="length before the stretch (tokens); needed by dynamic, yarn and llama3"
    )
    low_freq_factor: float = Field(
        1.0, gt=0, description="llama3: wavelengths above original_max_seq_len / this are divided by factor (ratio)"
    )
    high_freq_factor: float = Field(
        4.0, gt=0, description="llama3: wavelengths below original_max_seq_len / this stay (ratio)"
    )
    beta_fast: float = Field(32.0, gt=0, description="yarn: dimensions that turn more often than this stay (turns)")
    beta_slow: float = Field(1.0, gt=0, description="yarn: dimensions that turn less often are stretched (turns)")
    attention_factor: float | None = Field(
        None, gt=0, description="yarn: factor of cosines and sines; default 0.1 * ln(factor) + 1"
    )
    mscale: float | None = Field(None, gt=0, description="yarn: weight of ln(factor) in the numerator of that default")
    mscale_all_dim: float | None = Field(None, gt=0, description="yarn: the same in its denominator; needs mscale")
    truncate: bool = Field(True, description="yarn: round the bounds of the ramp to whole dimensions")

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        unread = [name for name in self._changed() if name != "type" and name not in _READS[self.type]]
        if unread:
            reads = ", ".join(sorted(_READS[self.type])) or "no parameter"
            raise ValueError(
                f"rope scaling {self.type!r} does not read {', '.join(unread)} (it reads {reads}); "
                "leave these out, or set type to the scaling that they belong to"
            )
        if _ORIGINAL in _READS[self.type] and self.original_max_seq_len is None:
            raise ValueError(
                f"rope scaling {self.type!r} needs {_ORIGINAL}; set it to the length (tokens) before the stretch"
            )
        return self

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(
                    f"{low}={getattr(self, low)} must be less than {high}={getattr(self, high)}; swap or change them"
                )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError("mscale and mscale_all_dim are used together; set both or neither")
        return self

    @staticmethod
    def parameters_of(kind: str) -> frozenset[str]:
        """Names of the parameters that a type reads."""
        return _READS[kind]

    def _changed(self) -> list[str]:
        fields = type(self).model_fields
        return [name for name in fields if getattr(self, name) != fields[name].default]

    def chosen(self) -> dict[str, Any]:
        """The type and the parameters that it reads, without those left at ``None``."""
        names = ["type", *(name for name in type(self).model_fields if name in _READS[self.type])]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class LlamaConfig(ModelConfig):
    """Field names follow Meta's ``params.json``; counts start with ``n_``. The base adds ``vocab_size``, ``max_seq_len``."""

    dim: int = Field(gt=0, description="width of the hidden states (channels)")
    n_layers: int = Field(gt=0, description="blocks, one on top of the other")
    n_heads: int = Field(gt=0, description="query heads")
    n_kv_heads: int = Field(gt=0, description="key/value heads; n_heads means plain multi-head attention")
    ffn_dim: int = Field(gt=0, description="hidden width of the gated MLP (channels)")
    head_dim: int | None = Field(None, gt=0, description="width of one head (channels); default dim / n_heads")
    norm_eps: float = Field(1e-5, gt=0, lt=1, description="added to the mean square in RMSNorm")
    rope_theta: float = Field(10_000.0, gt=1, description="base of the rotary wavelengths")
    rope_scaling: RopeScaling = Field(RopeScaling(), description="stretch of the rotary positions")
    tie_embeddings: bool = Field(False, description="the head's weight is the embedding's")
    attention_bias: bool = Field(False, description="biases in the four attention projections")
    mlp_bias: bool = Field(False, description="biases in the three MLP projections")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="share of what attention and MLP add that is set to 0 in training"
    )

    @property
    def head_width(self) -> int:
        """Channels of one head: ``head_dim``, or ``dim / n_heads``."""
        return self.head_dim if self.head_dim is not None else self.dim // self.n_heads

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        faults = [*self._head_faults(), *self._width_faults()]
        if faults:
            raise ValueError(". Also, ".join(faults))
        return self

    def _head_faults(self) -> Iterator[str]:
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

    def _width_faults(self) -> Iterator[str]:
        if self.head_width < 1 or self.head_width % 2:
            yield (
                f"a head has {self.head_width} channels, and rotary positions turn pairs; "
                "set head_dim to an even number, or change dim / n_heads"
            )
        elif self.head_width == 2 and self.rope_scaling.type == "dynamic":
            yield (
                "a head has 2 channels, and dynamic scaling divides by the others; "
                "set head_dim to 4 or more, or choose another rope_scaling.type"
            )
