"""Images to pixels: read, turned upright, made RGB, resized and normalised as the encoder's weights know them. Torch is not imported.

The order is EXIF orientation, RGB, resize, 1/255, mean and standard deviation; each value equals that of the image processors of
https://github.com/huggingface/transformers that work with PIL.

Shapes: H, W height and width in pixels, S side of the square that the encoder sees.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import ExifTags, Image, ImageColor, ImageOps, UnidentifiedImageError

from mt_core import DataError, first_line
from mt_core.media import Measured, MediaItem, MediaPart

from .content import digest_of, read_content, require_same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mt_core.media import Grid

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Formats that are opened, by PIL's names: a file is one of these by its content, whatever its ending."""
RATIO = 200
"""Longest side over the shortest one; an image beyond it is hardly a picture, and far larger once its short side is resized."""
THUMBNAIL = 96
"""Longest side of an image that people are shown (pixels)."""
BAND = 256
"""Rows of a transparent image that are laid on the background at once."""
FILTERS: Mapping[str, Image.Resampling] = {each.name.lower(): each for each in Image.Resampling}

# What PIL warns of is either an error here, or a fault of EXIF data that says nothing about pixels: thousands of rows may have it.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

_TURNED = (5, 6, 7, 8)
"""EXIF orientations that change width and height."""
_DEEP = ("I", "F")
"""How the modes of more than 8 bits a channel begin, which PIL clips where it makes RGB of them."""
_FAULTS = (
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
"""Exceptions of PIL for bytes that are no image of the format that they begin as."""


@dataclass(frozen=True, kw_only=True)
class ImageReader:
    """Reads images from files, and makes values of bytes. What an encoder sees of them is for those who inherit from it."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    filter: str = "bicubic"
    background: str = "white"
    max_pixels: int = 89_478_485
    max_bytes: int = 256 * 2**20
    verify: Literal["full", "header"] = "full"

    def measured(self, size: tuple[int, int], digest: bytes) -> Measured:
        """Return what is known of an upright image of this width and height (pixels)."""
        raise NotImplementedError

    def arrays(self, image: Image.Image) -> Mapping[str, NDArray[np.generic]]:
        """Return what the encoder sees of an upright RGB image."""
        raise NotImplementedError

    def header_size(self, image: Image.Image) -> tuple[int, int]:
        """Return width and height of an image once it is upright, before it is decoded."""
        is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) in _TURNED
        return (image.height, image.width) if is_turned else image.size

    def measure(self, part: MediaPart) -> Measured:
        """Return features and digest; every pixel is decoded once where ``verify`` is full. Raises ``DataError``."""
        content = self._content(part.path, part.content, part.place or part.path)
        place = part.place or part.path or "the image"
        if self.verify == "full":
            size = self._decode(content, place).size
        else:
            with self._opened(content, place) as image:
                size = self.header_size(image)
        return self.measured(size, digest_of(content))

    def read(self, item: MediaItem) -> Mapping[str, NDArray[np.generic]]:
        """Return ``arrays`` of an image. Raises ``DataError`` for another content than was measured."""
        place = item.path or "an image of a row"
        content = self._content(item.path, item.content, place)
        require_same(content, item.digest, place)
        return self.arrays(self._decode(content, place))

    def describe(self, item: MediaItem) -> str:
        """Say how large an image is, by its header. Raises ``DataError`` as ``read`` does."""
        place = item.path or "an image of a row"
        with self._opened(self._content(item.path, item.content, place), place) as image:
            return f"image {image.width}×{image.height}"

    def thumbnail(self, item: MediaItem) -> bytes:
        """Return a small PNG of an image, for people. Raises ``DataError`` as ``read`` does."""
        place, out = item.path or "an image of a row", BytesIO()
        image = self._decode(self._content(item.path, item.content, place), place)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(out, "PNG")
        return out.getvalue()

    def values(self, image_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return what the bytes of an RGB image become, (3, H, W)."""
        levels_C = self._levels()
        return np.stack([levels_C[channel].take(image_HWC[:, :, channel]) for channel in range(3)])

    # ------------------------------------------------------------------------------------------------------- content

    def _content(self, path: str, content: bytes, place: str) -> bytes:
        """Return the bytes of a file, no more than are allowed, or those that are there."""
        return read_content(path, content, place, self.max_bytes, option="max_bytes")

    def _decode(self, content: bytes, place: str) -> Image.Image:
        """An upright RGB image."""
        with self._opened(content, place) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # without a copy where nothing is to be turned
            return self._rgb(image)

    @contextmanager
    def _opened(self, content: bytes, place: str) -> Iterator[Image.Image]:
        """Yield an image of which the header alone is read; what PIL raises is one ``DataError`` with the place."""
        try:
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                self._check(image, place)
                yield image
        except UnidentifiedImageError as error:
            raise DataError(
                f"{place} is no image that can be read; allowed are {', '.join(FORMATS)}: convert it to one of these"
            ) from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise DataError(
                f"{place} has more than max_pixels={self.max_pixels:,} pixels; store a smaller image"
            ) from error
        except _FAULTS as error:
            raise DataError(
                f"{place} is truncated or damaged: {first_line(error)}; fetch or write the image anew"
            ) from error

    def _check(self, image: Image.Image, place: str) -> None:
        """Raise ``DataError`` for what the header says and no encoder can take."""
        width, height = image.size
        if width * height > self.max_pixels:
            raise DataError(
                f"{place} has {width} x {height} pixels, more than max_pixels={self.max_pixels:,}; store a smaller image, or raise it"
            )
        if not min(width, height) or max(width, height) > RATIO * min(width, height):
            raise DataError(
                f"{place} has {width} x {height} pixels; one side may be {RATIO} times the other at most: cut it into pieces"
            )
        if image.mode.startswith(_DEEP):
            raise DataError(
                f"{place} has 16 bits or more a channel (mode {image.mode}); store it with 8 bits, scaled as you mean it"
            )
        # A JPEG may hold more pictures: the same one smaller, or its gain map. The first is the photograph.
        if image.format != "MPO" and getattr(image, "is_animated", False):
            raise DataError(f"{place} is an animation; store one of its frames as an image")

    def _rgb(self, image: Image.Image) -> Image.Image:
        """RGB, on the background where there is a transparent colour or an alpha channel."""
        if "A" not in image.getbands() and image.info.get("transparency") is None:
            return image if image.mode == "RGB" else image.convert("RGB")
        out = Image.new("RGB", image.size)
        for top in range(
            0, image.height, BAND
        ):  # four bytes a pixel, three times over, would be the most memory of all
            box = (0, top, image.width, min(image.height, top + BAND))
            front = image.crop(box).convert("RGBA")
            back = Image.new("RGBA", front.size, (*colour(self.background), 255))
            out.paste(Image.alpha_composite(back, front).convert("RGB"), box)
        return out

    def _levels(self) -> NDArray[np.float32]:
        """(3, 256): what each byte of each channel becomes."""
        bytes_V = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
        mean_C1, std_C1 = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        return (bytes_V - mean_C1) / std_C1


@dataclass(frozen=True, kw_only=True)
class ImageProcessor(ImageReader):
    """Reads images for an encoder that sees squares of ``side`` pixels, in patches of ``patch``.

    ``fit`` is how an image becomes a square: ``crop`` resizes its shortest edge to ``edge`` and takes the middle, ``stretch`` does so
    with both sides, ``pad`` adds margins in the mean colour before. ``before`` are features in front of those of the patches.
    """

    side: int
    patch: int
    fit: Literal["crop", "stretch", "pad"]
    edge: int
    before: int = 0

    def measured(self, size: tuple[int, int], digest: bytes) -> Measured:
        """Return the features, which are the same for images of any size."""
        rows = self.side // self.patch
        grid: Grid | None = None if self.before else (1, rows, rows)
        return Measured(rows * rows + self.before, grid, digest)

    def header_size(self, image: Image.Image) -> tuple[int, int]:
        """Return what the header says, which plays no part here: some files have their orientation behind the pixels."""
        return image.size

    def arrays(self, image: Image.Image) -> Mapping[str, NDArray[np.generic]]:
        """Return ``pixels`` (1, 3, S, S) in fp32."""
        return {"pixels": self.values(self._square(image))[None]}

    def dummy(self) -> tuple[Measured, Mapping[str, NDArray[np.generic]]]:
        """Return an image of zeros: an encoder that sees squares of one size has no smaller one."""
        nothing = np.zeros((1, 3, self.side, self.side), np.float32)
        return self.measured((self.side, self.side), b""), {"pixels": nothing}

    def _square(self, image: Image.Image) -> NDArray[np.uint8]:
        """(S, S, 3)."""
        if self.fit == "pad":
            image = self._pad(image)
        shortest = min(image.size)
        is_short = self.fit != "stretch"
        width, height = (
            int(self.edge * side / shortest) if is_short and side > shortest else self.edge for side in image.size
        )
        return _centre(np.asarray(image.resize((width, height), FILTERS[self.filter])), self.side)

    def _pad(self, image: Image.Image) -> Image.Image:
        """A square in whose middle the image stands, and the mean colour around it."""
        side = max(image.size)
        square = Image.new("RGB", (side, side), tuple(int(255 * value) for value in self.mean))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return square


def colour(name: str) -> tuple[int, int, int]:
    """Red, green and blue of a colour's name or ``#rrggbb``. Raises ``ValueError`` for another word."""
    red, green, blue = ImageColor.getrgb(name)[:3]
    return red, green, blue


def _centre(image_HWC: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the middle of an image, with black around it where the image is smaller."""
    height, width, channels = image_HWC.shape
    top, left = (height - side) // 2, (width - side) // 2
    inside = image_HWC[max(0, top) : max(0, top) + side, max(0, left) : max(0, left) + side]
    out = np.zeros((side, side, channels), np.uint8)
    top, left = max(0, -top), max(0, -left)
    out[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    return out
