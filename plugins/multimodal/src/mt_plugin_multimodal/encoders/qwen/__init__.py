"""Vision towers of Qwen2.5-VL and Qwen3-VL: images of any shape, by patches. Torch is not imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mt_core.media import EncoderComponent

from ...image_config import ImageFileConfig
from ..layers import layers_up_to
from .huggingface import QWEN2_5, QWEN3, TowerNames, tower_format, write_processor

if TYPE_CHECKING:
    from mt_core.nn import Encoder

    from ...patches import PatchProcessor


@dataclass(frozen=True)
class Shape:
    """Sizes of a tower: channels, blocks, heads, channels of the MLP, and pixels of a patch.

    ``full`` are blocks in which all patches of an image see one another, where others see a window; ``taps`` those whose output is a
    feature, too.
    """

    width: int
    blocks: int
    heads: int
    mlp: int
    patch: int
    full: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()


QWEN2_5_SIZES: Mapping[str, Shape] = {  # config.json of Qwen/Qwen2.5-VL-…-Instruct: one tower for all sizes
    "tiny": Shape(32, 2, 2, 64, 4, full=(1,)),
    "large": Shape(1280, 32, 16, 3420, 14, full=(7, 15, 23, 31)),
}
QWEN3_SIZES: Mapping[str, Shape] = {  # config.json of Qwen/Qwen3-VL-…-Instruct
    "tiny": Shape(32, 4, 2, 64, 4, taps=(0, 1, 2)),
    "large": Shape(1024, 24, 16, 4096, 16, taps=(5, 11, 17)),
    "so400m": Shape(1152, 27, 16, 4304, 16, taps=(8, 16, 24)),
}


class TowerConfig(ImageFileConfig):
    """A tower: a named size, and what of it is another."""

    sizes: ClassVar[Mapping[str, Shape]]

    size: str = Field("tiny", description="named size; the options below change it")
    width: int | None = Field(None, ge=1, le=65_536, description="channels of a feature")
    blocks: int | None = Field(None, ge=1, le=1000, description="transformer blocks of the whole tower")
    heads: int | None = Field(None, ge=1, le=65_536, description="attention heads; they divide the width")
    mlp: int | None = Field(None, ge=1, le=1_048_576, description="channels inside the MLP")
    patch: int | None = Field(None, ge=1, le=4096, description="side of a patch (pixels)")
    merge: int = Field(2, ge=1, le=16, description="patches along the side of a square that images are cut into")
    min_area: int = Field(3136, ge=1, le=2**30, description="smallest area that an image is resized to (pixels)")
    max_area: int = Field(1_003_520, ge=1, le=2**30, description="largest area that an image is resized to (pixels)")

    @property
    def shape(self) -> Shape:
        """The sizes that hold."""
        said = {name: getattr(self, name, None) for name in Shape.__dataclass_fields__}
        return replace(self.sizes[self.size], **{name: value for name, value in said.items() if value is not None})

    @property
    def depth(self) -> int:
        """Blocks that are built: those up to ``layer``."""
        return layers_up_to(self.layer, self.shape.blocks)

    @property
    def channels(self) -> int:
        """Channels of all features of a patch."""
        return self.shape.width * (1 + len(self.shape.taps))

    def processor(self) -> PatchProcessor:
        """Return what reads images for it."""
        from ...patches import PatchProcessor

        own: dict[str, Any] = {**self.reading(), **self.places()}
        return PatchProcessor(
            patch=self.shape.patch, merge=self.merge, min_area=self.min_area, max_area=self.max_area, **own
        )

    def places(self) -> dict[str, int]:
        """Return what of the tower its processor knows, too."""
        return {}

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if faults := list(self.faults()):
            raise ValueError(". Also, ".join(faults))
        return self

    def faults(self) -> Iterator[str]:
        """Yield what does not fit together, each fault with its remedy."""
        shape = self.shape
        if shape.width % shape.heads or shape.width // shape.heads % 4:
            yield (
                f"heads={shape.heads} and width={shape.width}: a head needs a multiple of 4 channels, half of which turn by row, half by"
                " column; change one of them"
            )
        if not 0 <= self.depth <= shape.blocks:
            yield f"layer={self.layer} is none of {shape.blocks} blocks; give {-shape.blocks - 1} to {shape.blocks}, or leave it out"
        if self.min_area > self.max_area:
            yield f"min_area={self.min_area} is above max_area={self.max_area}; change one of them"
        if self.max_area < (self.merge * shape.patch) ** 2:
            yield f"max_area={self.max_area} pixels hold no {self.merge} x {self.merge} patches of {shape.patch}; raise it"


class Qwen25VLConfig(TowerConfig):
    """Qwen2.5-VL's tower (https://arxiv.org/abs/2502.13923)."""

    sizes = QWEN2_5_SIZES

    size: Literal["tiny", "large"] = Field("tiny", description="named size; the options below change it")
    full: tuple[int, ...] | None = Field(
        None, description="blocks (indices) in which patches see the whole image; those of others see their window"
    )
    window: int | None = Field(
        None,
        ge=1,
        le=16_384,
        description="side of a window (pixels); default: 8 patches, which is 112 in published ones",
    )
    projector: Mapping[str, Any] = Field(
        default={"name": "merger"}, description="the projector and its options: {name: merger, factor: 2}"
    )
    mean: tuple[float, float, float] = Field(
        (0.48145466, 0.4578275, 0.40821073), description="subtracted from red, green and blue (0 to 1)"
    )
    std: tuple[float, float, float] = Field(
        (0.26862954, 0.26130258, 0.27577711), description="divides red, green and blue after the mean is subtracted"
    )

    @property
    def window_patches(self) -> int:
        """Patches along the side of a window, whole squares of them."""
        return (self.window or 8 * self.shape.patch) // self.merge // self.shape.patch * self.merge

    def places(self) -> dict[str, int]:
        """Return the window."""
        return {"window": self.window_patches}

    def faults(self) -> Iterator[str]:
        """Yield faults, also that of a window without a square."""
        yield from super().faults()
        if self.window_patches < 1:
            yield f"window={self.window} pixels hold no {self.merge} x {self.merge} patches of {self.shape.patch}; raise it"


class Qwen3VLConfig(TowerConfig):
    """Qwen3-VL's tower (https://arxiv.org/abs/2511.21631), features of some of whose blocks enter the language model's, too."""

    sizes = QWEN3_SIZES

    size: Literal["tiny", "large", "so400m"] = Field("tiny", description="named size; the options below change it")
    taps: tuple[int, ...] | None = Field(
        None, description="blocks (indices) whose output is a feature, too; the projector has as many levels"
    )
    table: int = Field(
        48, ge=1, le=4096, description="patches along the side of the square that positions are learned for"
    )
    projector: Mapping[str, Any] = Field(
        default={"name": "merger", "norm": "layer", "levels": 3},
        description="the projector and its options: {name: merger, levels: 3}",
    )
    min_area: int = Field(65_536, ge=1, le=2**30, description="smallest area that an image is resized to (pixels)")
    max_area: int = Field(16_777_216, ge=1, le=2**30, description="largest area that an image is resized to (pixels)")

    def places(self) -> dict[str, int]:
        """Return the table's side."""
        return {"table": self.table}

    def faults(self) -> Iterator[str]:
        """Yield faults, also those of features from blocks that there are not."""
        yield from super().faults()
        taps = self.shape.taps
        if list(taps) != sorted(set(taps)) or (taps and not 0 <= taps[0] <= taps[-1] < self.depth):
            yield f"taps={list(taps)} are no blocks of {self.depth} in order; give indices below that, each once"
        levels = self.projector.get("levels", 0)
        if self.projector.get("name") == "merger" and str(levels) != str(len(taps)):
            yield f"projector.levels={levels}, and features of {len(taps)} blocks (taps) are added; set it to {len(taps)}"


def _build(config: TowerConfig, **_: Any) -> Encoder:
    from .model import QwenTower  # torch loads here, when a run has chosen this encoder

    return QwenTower(config)


def _component(name: str, config: type[TowerConfig], names: TowerNames, summary: str, source: str) -> EncoderComponent:
    return EncoderComponent(
        name=name,
        config=config,
        build=_build,
        reads=frozenset({"image"}),
        width=lambda config: config.channels,
        processor=lambda config: config.processor(),
        formats=(tower_format(names),),
        files=lambda config, token: write_processor(config, names, token),
        summary=summary,
        source=source,
    )


COMPONENTS = (
    _component(
        "qwen2-5-vl",
        Qwen25VLConfig,
        QWEN2_5,
        "Qwen2.5-VL's tower: images of any shape, attention in windows",
        "https://arxiv.org/abs/2502.13923",
    ),
    _component(
        "qwen3-vl",
        Qwen3VLConfig,
        QWEN3,
        "Qwen3-VL's tower: images of any shape, features of several blocks (DeepStack)",
        "https://arxiv.org/abs/2511.21631",
    ),
)
