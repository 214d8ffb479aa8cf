"""Whisper's encoder (https://arxiv.org/abs/2212.04356): a window of sound, silence behind its end, to two features for each 40 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from mt_core.media import EncoderComponent, EncoderConfig, Processor

from .weights import WHISPER

if TYPE_CHECKING:
    from mt_core.nn import Encoder

FEATURES_A_SECOND = 50


class WhisperConfig(EncoderConfig):
    """Sizes of the encoder; the defaults are those of whisper-tiny."""

    n_mels: int = Field(80, ge=1, le=1024, description="channels of the spectrogram")
    dim: int = Field(384, ge=4, le=65_536, multiple_of=2, description="channels of a feature")
    n_layers: int = Field(4, ge=1, le=1000, description="layers of the weights; above `layer` none is built")
    n_heads: int = Field(6, ge=1, le=1024, description="heads")
    ffn_dim: int = Field(1536, ge=1, le=1_000_000, description="channels inside an MLP")
    n_features: int = Field(1500, ge=2, le=100_000, description="features of an item, 50 for each second of the window")

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.dim % self.n_heads:
            raise ValueError(
                f"dim={self.dim} is not a multiple of n_heads={self.n_heads}; set n_heads to a divisor of dim"
            )
        if self.layer is not None and not 0 <= self.built_layers <= self.n_layers:
            raise ValueError(
                f"layer={self.layer} is none of {self.n_layers} layers; write 0 (in front of all) to {self.n_layers}, or -1 (the last)"
                f" to {-self.n_layers - 1}"
            )
        return self

    @property
    def built_layers(self) -> int:
        """Layers up to that of the features."""
        if self.layer is None:
            return self.n_layers
        return self.layer if self.layer >= 0 else self.n_layers + 1 + self.layer

    @property
    def seconds(self) -> float:
        """Longest sound of an item."""
        return self.n_features / FEATURES_A_SECOND


def build(config: WhisperConfig) -> Encoder:
    """Return the encoder."""
    from .module import WhisperEncoder

    return WhisperEncoder(config)


def processor(config: WhisperConfig) -> Processor:
    """Return what reads sound files for it."""
    from .processor import WhisperProcessor

    return WhisperProcessor(n_mels=config.n_mels, features=config.n_features)


COMPONENT = EncoderComponent(
    name="whisper",
    config=WhisperConfig,
    build=build,
    reads=frozenset({"audio"}),
    width=lambda config: int(config.dim),
    processor=processor,
    formats=(WHISPER,),
    summary="Whisper's encoder: WAVE files of up to 30 seconds",
    source="https://arxiv.org/abs/2212.04356",
)
