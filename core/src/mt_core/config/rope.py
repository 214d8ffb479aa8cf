"""Options of rotary positions, for any family that has them. Imports no torch."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mt_core.config.base import MtConfig

RopeType = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"]

_ORIGINAL = "original_max_seq_len"
_SECTIONS = frozenset({"sections", "sections_interleaved"})
_READS: dict[str, frozenset[str]] = {
    "none": _SECTIONS,
    "linear": _SECTIONS | {"factor"},
    "dynamic": frozenset({"factor", _ORIGINAL}),
    "yarn": _SECTIONS
    | {"factor", _ORIGINAL, "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"},
    "llama3": _SECTIONS | {"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"},
    "longrope": frozenset({"factor", _ORIGINAL, "attention_factor", "short_factor", "long_factor"}),
}


class RopeScaling(MtConfig):
    """Options that scale rotary positions beyond the length that the model was first trained on.

    A parameter that the chosen type does not read is an error. Sources: linear https://arxiv.org/abs/2306.15595,
    dynamic https://arxiv.org/abs/2309.00071 (appendix B.3), yarn https://arxiv.org/abs/2309.00071, llama3
    https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py (``apply_scaling``), longrope
    https://arxiv.org/abs/2402.13753. With ``sections`` (M-RoPE, https://arxiv.org/abs/2409.12191) pairs of channels turn by the time,
    the row or the column of a token; text alone is the same with and without.
    """

    type: RopeType = Field("none", description="none, linear, dynamic (NTK), yarn, llama3 or longrope")
    factor: float = Field(1.0, ge=1.0, description="how many times longer than the original length (ratio)")
    original_max_seq_len: int | None = Field(
        None, gt=0, description="length before the stretch (tokens); needed by all but linear"
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
        None,
        gt=0,
        description="yarn: factor of cosines and sines; default 0.1 * ln(factor) + 1; longrope: the same; default"
        " sqrt(1 + ln(factor) / ln(original_max_seq_len))",
    )
    mscale: float | None = Field(None, gt=0, description="yarn: weight of ln(factor) in the numerator of that default")
    mscale_all_dim: float | None = Field(None, gt=0, description="yarn: the same in its denominator; needs mscale")
    truncate: bool = Field(True, description="yarn: round the bounds of the ramp to whole dimensions")
    short_factor: tuple[float, ...] = Field(
        (), description="longrope: stretch of each pair of channels in texts up to the original length (ratios)"
    )
    long_factor: tuple[float, ...] = Field(
        (), description="longrope: stretch of each pair of channels in longer texts (ratios)"
    )

    sections: tuple[int, ...] = Field(
        (),
        description="pairs of channels of a head that turn by time, row and column of images; without: by the position",
    )
    sections_interleaved: bool = Field(
        False, description="sections alternate, as in Qwen 3; otherwise each is a contiguous run"
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        unread = [name for name in self._changed_fields() if name != "type" and name not in _READS[self.type]]
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

    @model_validator(mode="after")
    def _has_factors(self) -> Self:
        if self.type == "longrope" and not min(self.short_factor, default=0) * min(self.long_factor, default=0) > 0:
            raise ValueError(
                "rope scaling 'longrope' needs short_factor and long_factor, a positive ratio for each pair of channels;"
                " take those that were published with the weights"
            )
        return self

    @model_validator(mode="after")
    def _sections_are_three(self) -> Self:
        if self.sections and (len(self.sections) != 3 or min(self.sections) < 0):
            raise ValueError(f"sections={list(self.sections)} are not three counts; give those of time, row and column")
        if self.sections_interleaved and (not self.sections or max(self.sections[1:]) > sum(self.sections) // 3):
            raise ValueError(
                f"sections_interleaved with sections={list(self.sections)}: row and column have every third pair of channels at most;"
                " give them a third of all or less, or set it to false"
            )
        return self

    def axes(self) -> list[int]:
        """Return for each pair of channels whether it turns by time (0), row (1) or column (2)."""
        if not self.sections_interleaved:
            return [axis for axis, count in enumerate(self.sections) for _ in range(count)]
        return [at % 3 if at < 3 * self.sections[at % 3] else 0 for at in range(sum(self.sections))]

    @property
    def by_length(self) -> bool:
        """Return whether the angles depend on the length of a text."""
        return self.type in ("dynamic", "longrope")

    @staticmethod
    def parameters_of(kind: str) -> frozenset[str]:
        """Names of the parameters that a type reads."""
        return _READS[kind]

    def _changed_fields(self) -> list[str]:
        fields = type(self).model_fields
        return [name for name in fields if getattr(self, name) != fields[name].default]

    def active_parameters(self) -> dict[str, Any]:
        """The type and the parameters that it reads, without those left at ``None``, and sections only where there are some."""
        names = ["type", *(name for name in type(self).model_fields if name in _READS[self.type])]
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {name: value for name, value in said.items() if value or name not in _SECTIONS}
