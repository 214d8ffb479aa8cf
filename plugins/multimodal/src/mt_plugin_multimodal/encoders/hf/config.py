"""Options of encoders of transformers: ``config.json`` whole, and what reads the content. Neither torch nor transformers is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from mt_core import UsageError
from mt_core.media import EncoderConfig

from ...image_config import ImageConfig
from .types import TYPES, HfType, Kind, encoder_config, fault_of

if TYPE_CHECKING:
    from ...images import ImageProcessor
    from .sequences import SequenceProcessor
    from .sounds import SoundProcessor, Windows


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
        layers = self.content.get("num_hidden_layers", 12)
        if type(layers) is not int or not 0 < layers <= 1000:
            raise ValueError(f"num_hidden_layers of config.json is {layers!r}, and must be a whole number above 0")
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
        """What is known of the model type."""
        return TYPES[self.content["model_type"]]

    @property
    def width(self) -> int:
        """Channels of a feature."""
        return int(self.content.get("hidden_size", 768))

    @property
    def built_layers(self) -> int:
        """Layers up to that of the features."""
        layers = int(self.content.get("num_hidden_layers", 12))
        if self.layer is None:
            return layers
        return self.layer if self.layer >= 0 else layers + 1 + self.layer


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
        return _side(self.content.get("image_size", 224), "image_size")

    @property
    def side(self) -> int:
        """Side of the square that it sees (pixels)."""
        return self.image or self.trained_side

    @property
    def patch(self) -> int:
        """Side of a patch (pixels)."""
        return _side(self.content.get("patch_size", 16), "patch_size")

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
        positions = int(self.content.get("max_position_embeddings", 512))
        return positions - (int(self.content.get("pad_token_id") or 0) + 1 if self.type.offset_positions else 0)

    def make_processor(self) -> SequenceProcessor:
        """Return what reads sequences for it."""
        from .sequences import SequenceProcessor, read_vocabulary

        if self.weights is None:
            raise UsageError(
                "the encoder hf-sequence has no tokenizer: name the folder of its weights (--encoders.hf-sequence.weights FOLDER)"
            )
        return SequenceProcessor(
            read_vocabulary(Path(self.weights)), longest=self.longest, keep_special=self.keep_special
        )


class HfAudioConfig(HfConfig):
    """An encoder of raw sounds."""

    kind = "audio"

    seconds: float = Field(30.0, gt=0, le=3600, description="longest sound of an item (seconds)")
    normalize: bool = Field(True, description="each sound is brought to mean 0 and variance 1")

    @property
    def windows(self) -> Windows:
        """The convolutions that make features of samples."""
        from .sounds import Windows

        kernels, strides = (self.content.get(key, default) for key, default in _CONVOLUTIONS.items())
        return Windows(tuple(map(int, kernels)), tuple(map(int, strides)))

    def make_processor(self) -> SoundProcessor:
        """Return what reads sounds for it."""
        from .sounds import SoundProcessor

        return SoundProcessor(windows=self.windows, seconds=self.seconds, normalize=self.normalize)


_CONVOLUTIONS = {"conv_kernel": (10, 3, 3, 3, 3, 2, 2), "conv_stride": (5, 2, 2, 2, 2, 2, 2)}
"""Key of ``config.json`` → what a file means that has none."""


def _side(value: Any, key: str) -> int:
    """A whole number, or two that are the same."""
    sides = value if isinstance(value, list | tuple) else [value]
    if not sides or any(type(each) is not int or each < 1 or each != sides[0] for each in sides):
        raise ValueError(f"{key} of config.json is {value!r}; only squares are read")
    return int(sides[0])
