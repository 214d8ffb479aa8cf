"""Options of encoders of transformers: ``config.json`` whole, and what reads the content. Neither torch nor transformers is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from mt_core import UsageError
from mt_core.media import EncoderConfig, Processor

from ...image_config import ImageConfig
from ..layers import layers_up_to
from .types import TYPES, HfType, Kind, encoder_config, fault_of

if TYPE_CHECKING:
    from ...images import ImageProcessor
    from .sequences import SequenceProcessor
    from .sounds import SoundProcessor, Windows

_NUMBERS: Mapping[str, int] = {"hidden_size": 65_536, "num_hidden_layers": 1000}
"""Key of ``config.json`` that every type has → the most that it may be."""


class HfConfig(EncoderConfig):
    """An encoder of transformers. Its sizes are those of the weights."""

    kind: ClassVar[Kind]

    config: dict[str, Any] = Field(
        default_factory=dict, description="content of config.json; default: that of the weights"
    )

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if not self.config:
            return self
        if fault := fault_of(self.config, self.kind):
            raise ValueError(fault)
        for key, most in _NUMBERS.items():
            if type(number := self.value(key)) is not int or not 0 < number <= most:
                raise ValueError(f"{key} of config.json is {number!r}, and must be a whole number from 1 to {most:,}")
        layers = self.layers
        if not 1 <= self.built_layers <= layers:
            raise ValueError(
                f"layer={self.layer} is none of {layers} layers; write 1 to {layers}, or -1 (the last) to {-layers}"
            )
        return self

    @property
    def content(self) -> Mapping[str, Any]:
        """The encoder's part of ``config.json``. Raises ``UsageError`` where the run has none."""
        if not self.config:
            raise UsageError(
                f"the encoder hf-{self.kind} has no sizes of its own: name the folder of its weights"
                f" (--encoders.hf-{self.kind}.weights FOLDER)"
            )
        return encoder_config(self.config)

    @property
    def type(self) -> HfType:
        """Facts about the model type."""
        return TYPES[self.content["model_type"]]

    def value(self, key: str) -> Any:
        """Return a value of ``config.json``, or the one that transformers takes where the file lacks it."""
        return self.type.value(self.content, key)

    @property
    def width(self) -> int:
        """Channels of a feature."""
        return int(self.value("hidden_size"))

    @property
    def layers(self) -> int:
        """Layers of the weights."""
        return int(self.value("num_hidden_layers"))

    @property
    def built_layers(self) -> int:
        """Layers up to that of the features."""
        return layers_up_to(self.layer, self.layers)

    def make_processor(self) -> Processor:
        """Return what reads content for it."""
        raise NotImplementedError


class HfImageConfig(HfConfig, ImageConfig):
    """An encoder of images."""

    kind = "image"

    image: int | None = Field(
        None, ge=1, le=16_384, description="side of the square that it sees (pixels); default: as trained"
    )
    keep_class: bool = Field(False, description="the class token is a feature, too, and stands before the patches")

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        if not self.config:
            return self
        if self.keep_class and not self.type.before:
            raise ValueError(f"keep_class is set, and {self.content['model_type']} has no class token; leave it out")
        if self.side != self.trained_side and not self.type.interpolates:
            raise ValueError(
                f"image={self.side} pixels, and {self.content['model_type']} has positions for {self.trained_side}; set image to that"
            )
        if self.side % self.patch:
            raise ValueError(f"image={self.side} pixels are no multiple of a patch of {self.patch}; set image to one")
        return self

    @property
    def trained_side(self) -> int:
        """Side that its positions are for (pixels)."""
        return self._stated_side("image_size")

    @property
    def side(self) -> int:
        """Side of the square that it sees (pixels)."""
        return self.image or self.trained_side

    @property
    def patch(self) -> int:
        """Side of a patch (pixels)."""
        return self._stated_side("patch_size")

    def _stated_side(self, key: str) -> int:
        """A whole number, or two that are the same."""
        value = self.value(key)
        sides = value if isinstance(value, list | tuple) else [value]
        if not sides or any(type(each) is not int or each < 1 or each != sides[0] for each in sides):
            raise ValueError(f"{key} of config.json is {value!r}; only squares are read")
        return int(sides[0])

    def make_processor(self) -> ImageProcessor:
        """Return what reads images for it."""
        return self.processor(side=self.side, patch=self.patch, before=int(self.keep_class))


class HfSequenceConfig(HfConfig):
    """An encoder of sequences of letters."""

    kind = "sequence"

    keep_special: bool = Field(False, description="special tokens in front and behind are features, too")

    @property
    def longest(self) -> int:
        """Most tokens of an item, special ones too."""
        positions = int(self.value("max_position_embeddings"))
        return positions - (self.pad + 1 if self.type.offset_positions else 0)

    @property
    def pad(self) -> int:
        """Id of what stands behind shorter items."""
        return int(self.value("pad_token_id") or 0)

    def make_processor(self) -> SequenceProcessor:
        """Return what reads sequences for it."""
        from .sequences import SequenceProcessor, read_vocabulary

        if self.weights is None:
            raise UsageError(
                "the encoder hf-sequence has no tokenizer: name the folder of its weights (--encoders.hf-sequence.weights FOLDER)"
            )
        rows = self.content.get("vocab_size")
        return SequenceProcessor(
            read_vocabulary(Path(self.weights)),
            longest=self.longest,
            keep_special=self.keep_special,
            rows=rows if type(rows) is int else None,
        )


class HfAudioConfig(HfConfig):
    """An encoder of raw sounds."""

    kind = "audio"

    seconds: float = Field(30.0, gt=0, le=3600, description="longest sound of an item (seconds)")
    normalize: bool = Field(True, description="each sound is brought to mean 0 and variance 1")

    @model_validator(mode="after")
    def _convolutions_fit(self) -> Self:
        if not self.config:
            return self
        given = kernels, strides = self.value("conv_kernel"), self.value("conv_stride")
        if not all(_are_counts(each) for each in given) or len(kernels) != len(strides):
            raise ValueError(
                f"conv_kernel and conv_stride of config.json are {kernels!r} and {strides!r}, and must be as many whole numbers above 0;"
                " fetch the file again"
            )
        return self

    @property
    def windows(self) -> Windows:
        """The convolutions that make features of samples."""
        from .sounds import Windows

        kernels, strides = self.value("conv_kernel"), self.value("conv_stride")
        return Windows(tuple(map(int, kernels)), tuple(map(int, strides)))

    def make_processor(self) -> SoundProcessor:
        """Return what reads sounds for it."""
        from .sounds import SoundProcessor

        return SoundProcessor(windows=self.windows, seconds=self.seconds, normalize=self.normalize)


def _are_counts(value: Any) -> bool:
    """Whether a value is a list of whole numbers above 0."""
    return isinstance(value, list | tuple) and all(type(each) is int and each > 0 for each in value)
