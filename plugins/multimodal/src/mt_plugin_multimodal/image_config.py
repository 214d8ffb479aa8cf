"""Options of an encoder that sees images. Neither torch nor PIL is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from mt_core import WeightsError
from mt_core.media import EncoderConfig
from mt_core.weights import read_json

if TYPE_CHECKING:
    from pathlib import Path

    from .images import ImageProcessor

FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Ways to resize, in the order of PIL's numbers, which files have."""
Triple = tuple[float, float, float]


class ImageFileConfig(EncoderConfig):
    """How a file becomes pixels. A folder of weights says all but what is about files (``read_pixels``)."""

    filter: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = Field(
        "bicubic", description="how images are resized, as PIL names it"
    )
    mean: Triple = Field((0.5, 0.5, 0.5), description="subtracted from red, green and blue (0 to 1)")
    std: Triple = Field((0.5, 0.5, 0.5), description="divides red, green and blue after the mean is subtracted")
    background: str = Field(
        "white", description="colour behind transparent images: a name, or '#rrggbb'", max_length=32
    )
    max_pixels: int = Field(
        89_478_485, ge=1, le=89_478_485, description="largest image that is decoded (pixels, by its header)"
    )
    max_bytes: int = Field(256 * 2**20, ge=1, le=2**32, description="largest file that is read (bytes)")
    verify: Literal["full", "header"] = Field(
        "full", description="what of an image is read before training: all of it, or its header alone"
    )

    @field_validator("std")
    @classmethod
    def _std_is_positive(cls, value: Triple) -> Triple:
        if min(value) <= 0:
            raise ValueError(f"std={list(value)} divides by 0 or less; give three numbers above 0")
        return value

    @field_validator("background")
    @classmethod
    def _background_is_a_colour(cls, value: str) -> str:
        from .images import colour

        colour(value)
        return value

    def reading(self) -> dict[str, Any]:
        """Return the options of an ``ImageReader``."""
        return self.model_dump(include={"filter", "mean", "std", "background", "max_pixels", "max_bytes", "verify"})


class ImageConfig(ImageFileConfig):
    """How a file becomes the square that the encoder sees (``read_processor``)."""

    margin: ClassVar[tuple[int, int]] = (1, 1)
    """Shortest edge of an image that is cropped, over the side that is kept of it, where ``edge`` does not say."""

    fit: Literal["crop", "stretch", "pad"] = Field(
        "crop",
        description="how an image becomes a square: its middle, both sides resized, or margins in the mean colour",
    )
    edge: int | None = Field(
        None,
        ge=1,
        le=16_384,
        description="shortest edge, or with stretch both sides, before the middle is taken (pixels)",
    )

    def processor(self, *, side: int, patch: int, before: int) -> ImageProcessor:
        """Return what reads images for squares of ``side`` pixels in patches of ``patch``, with ``before`` features in front."""
        from .images import ImageProcessor

        top, bottom = (1, 1) if self.fit == "stretch" else self.margin
        edge = self.edge or side * top // bottom
        return ImageProcessor(side=side, patch=patch, before=before, edge=edge, fit=self.fit, **self.reading())


# ------------------------------------------------------------------------------------------------- folders of weights

PROCESSOR, PREPROCESSOR = "processor_config.json", "preprocessor_config.json"
_FIXED: Mapping[str, Sequence[Any]] = {
    "do_resize": (True, None),
    "do_rescale": (True, None),
    "do_pan_and_scan": (False, None),
    "do_image_splitting": (False, None),
}
"""Keys that change the pixels → the values that are supported."""
_SQUARES = ("Beit", "DeiT", "ViT")
"""How classes begin for which a size of one number is both sides, and not the shortest edge, also where the middle is taken."""


def read_processor(folder: Path, *, crops: bool, margin: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Return our values of the image processor in a folder, ``image`` (side, pixels) among them; empty where it has none.

    ``crops``: whether the middle is taken where the file does not say. An edge that follows from the side by ``margin`` is left out, so
    that it follows from another side, too. Raises ``WeightsError`` for a processor that does something else.
    """
    found = processor_of(folder)
    if found is None:
        return {}
    file, said = found
    try:
        values = {**_read_sizes(said, file, crops=crops), **read_pixels(said, file)}
        top, bottom = (1, 1) if values.get("fit") == "stretch" else margin
        if "edge" in values and values["edge"] == values["image"] * top // bottom:
            del values["edge"]
        return values
    except (AttributeError, KeyError, LookupError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} has a value of the wrong type: {error}; correct it or fetch it again") from error


def processor_of(folder: Path, part: str = "image_processor") -> tuple[Path, Mapping[str, Any]] | None:
    """Return the file that transformers would take, and what it says: the newer one where it has this part, which another one reads sounds
    by (``feature_extractor``)."""
    if (folder / PROCESSOR).is_file() and isinstance(said := read_json(folder / PROCESSOR).get(part), dict):
        return folder / PROCESSOR, said
    if (folder / PREPROCESSOR).is_file():
        return folder / PREPROCESSOR, read_json(folder / PREPROCESSOR)
    return None


def read_pixels(said: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return filter, mean and standard deviation. Raises ``WeightsError`` for what no processor here does."""
    if other := [key for key, known in _FIXED.items() if said.get(key) not in known]:
        raise WeightsError(
            f"{file} has {other[0]}={said[other[0]]!r}, which no encoder here does; set it to {_FIXED[other[0]][0]}"
        )
    if abs(said.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9:
        raise WeightsError(f"{file} has rescale_factor={said['rescale_factor']}; only 1/255 is supported")
    values: dict[str, Any] = {}
    if "resample" in said:
        values["filter"] = FILTERS[int(said["resample"])]
    if not said.get("do_normalize", True):
        return {**values, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    for ours, theirs in (("mean", "image_mean"), ("std", "image_std")):
        if said.get(theirs) is not None:
            red, green, blue = (float(each) for each in said[theirs])
            values[ours] = (red, green, blue)
    return values


def _read_sizes(said: Mapping[str, Any], file: Path, *, crops: bool) -> dict[str, Any]:
    """Side, shortest edge and the way there."""
    crops = bool(said.get("do_center_crop", crops))
    size, crop = said.get("size"), said.get("crop_size")
    if isinstance(size, int):  # as files of transformers 4.20 and before
        is_short = crops and not _kind(said).startswith(_SQUARES)
        size = {"shortest_edge": size} if is_short else {"height": size, "width": size}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    if size is None:
        return {}
    edge = size.get("shortest_edge") or size["height"]
    squares = [
        each for each in (None if "shortest_edge" in size else size, crop if crops else None) if each is not None
    ]
    if not squares or any(each["height"] != each["width"] for each in squares):
        raise WeightsError(
            f"{file} makes no squares: size={size}, crop_size={crop}, do_center_crop={crops}; use weights that see squares"
        )
    if said.get("do_pad"):
        return {"fit": "pad", "image": squares[-1]["height"], "edge": edge}
    if "shortest_edge" in size:
        return {"fit": "crop", "image": squares[-1]["height"], "edge": edge}
    return {"fit": "stretch", "image": squares[-1]["height"], "edge": edge}


def _kind(said: Mapping[str, Any]) -> str:
    """Name of the image processor's class, as today's files and older ones have it."""
    return str(said.get("image_processor_type") or said.get("feature_extractor_type"))


def written_values(config: ImageFileConfig) -> dict[str, Any]:
    """Return the keys of ``preprocessor_config.json`` that every image processor has, as the run has read its images."""
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "image_mean": list(config.mean),
        "image_std": list(config.std),
        "resample": FILTERS.index(config.filter),
    }
