"""Small images of every kind that a file may have, made from a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

SAVED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {}),
    ("JPEG", "CMYK", {}),
    ("PNG", "1", {}),
    ("PNG", "L", {}),
    ("PNG", "L", {"transparency": 3}),
    ("PNG", "LA", {}),
    ("PNG", "P", {}),
    ("PNG", "P", {"transparency": 0}),
    ("PNG", "RGB", {}),
    ("PNG", "RGB", {"transparency": (1, 2, 3)}),
    ("PNG", "RGBA", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {}),
    ("GIF", "L", {}),
    ("GIF", "P", {}),
    ("GIF", "RGBA", {}),
    ("BMP", "1", {}),
    ("BMP", "L", {}),
    ("BMP", "P", {}),
    ("BMP", "RGB", {}),
    ("BMP", "RGBA", {}),
)
"""Format, mode and options of each kind."""
ORIENTATION = 274
"""The tag of EXIF."""


def picture(width: int = 53, height: int = 37, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """An image of noise; some of it is transparent where the mode can be."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 4), dtype=np.uint8)
    values[::2, ::3, 3] = 0
    values[1::2, ::3, 3] = 255
    image = Image.fromarray(values, "RGBA")
    return image.convert(mode) if mode in ("RGBA", "LA") else image.convert("RGB").convert(mode)


def encoded(image: Image.Image, format: str, orientation: int = 1, **options: Any) -> bytes:
    """The bytes of a file."""
    if orientation != 1:
        options["exif"] = exif = Image.Exif()
        exif[ORIENTATION] = orientation
    out = BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def every_kind(width: int = 53, height: int = 37) -> Iterator[tuple[str, bytes]]:
    """Each kind in each orientation that it can say, with what it is."""
    for format, mode, options in SAVED:
        image = picture(width, height, mode)
        for orientation in range(1, 9) if format in ("JPEG", "PNG", "WEBP") else (1,):
            yield f"{format} {mode} {options} {orientation}", encoded(image, format, orientation, **options)


def animation(format: str) -> bytes:
    """Two frames."""
    image = picture(16, 16)
    return encoded(image, format, save_all=True, append_images=[picture(16, 16, seed=1)])
