"""Values of the members of a sample, by their endings: text, JSON, whole numbers, arrays, and media as content. Nothing is executed."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mt_core import DataError
from mt_core.files import MOST_ROW_BYTES, Piece, json_value, text_start

TEXTS = frozenset({"txt", "text", "transcript"})
NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx"})
JSON = frozenset({"json", "jsn"})
MEDIA: Mapping[str, str] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"), "images"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a"), "audios"),
    **dict.fromkeys(("mp4", "webm", "mkv", "mov", "avi"), "videos"),
}
"""Ending → field of the row, with all items of its kind in the order of the shard."""

PICKLES = frozenset({"pyd", "pkl", "pickle", "pth", "pt", "ckpt", "joblib", "dill"})
"""Endings of what may run code when it is loaded."""

_READ = {*TEXTS, *NUMBERS, *JSON, *MEDIA, "npy"}
_GZIP = "gz"
_NUMBER = re.compile(rb"\s*([+-]?[0-9]{1,18})\s*")


def kind_of(ending: str) -> str:
    """Return what decides how a member is read: the last part of its ending, but for ``.gz``."""
    parts = ending.split(".")
    return parts[-2] if parts[-1] == _GZIP and len(parts) > 1 else parts[-1]


def field_of(ending: str) -> str:
    """Return the ending without ``.gz``, which is the field of a member that is neither text, JSON nor media."""
    return ending.removesuffix(f".{_GZIP}")


def is_read(ending: str) -> bool:
    """Return whether members of an ending are known."""
    return kind_of(ending) in _READ


def read_value(ending: str, content: bytes, place: str) -> Any:
    """Return the value of a member that is no media. Raises ``DataError`` that begins with ``place``."""
    kind = kind_of(ending)
    if kind in TEXTS:
        return _text(content, place).text()
    if kind in JSON:
        return json_value(_text(content, place))
    if kind in NUMBERS:
        if (found := _NUMBER.fullmatch(content)) is None:
            raise DataError(f"{place}: {content[:60]!r} is no whole number. Write digits, or name it .txt")
        return int(found[1])
    return _array(content, place)


def unpack(ending: str, content: bytes, place: str) -> bytes:
    """Return the content of a member, decompressed where its ending says so. Raises ``DataError``."""
    if not ending.endswith(f".{_GZIP}"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(MOST_ROW_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{place}: it is no whole gzip file ({error}). Write it anew") from error
    if len(content) > MOST_ROW_BYTES:
        raise too_large(place)
    return content


def too_large(place: str) -> DataError:
    """Return the error for a sample of more bytes than a row has."""
    return DataError(
        f"{place}: the sample has more than {MOST_ROW_BYTES >> 20} MiB, which no row has. Leave the large members out with"
        " dataset.endings, or divide it"
    )


def _text(content: bytes, place: str) -> Piece:
    path = Path(place)
    return Piece(path, 1, 0, content[text_start(path, content) :])


def _array(content: bytes, place: str) -> Any:
    """The values of an array of numbers, nested by its shape."""
    import numpy as np

    file = io.BytesIO(content)
    readers: Mapping[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
        if dtype.hasobject or dtype.kind not in "biuf":
            raise ValueError(f"it has {dtype}, and numbers are read")
        values = np.frombuffer(content, dtype, -1, file.tell())
        return values.reshape(shape, order="F" if is_fortran else "C").tolist()
    except (ValueError, KeyError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError) as error:
        raise DataError(f"{place}: it is no array of numbers ({error}). Write it with numpy.save") from error
