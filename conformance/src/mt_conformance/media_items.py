"""Items of the checks of an encoder: read as a run does, joined into a batch, and with bytes that are broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from mt_core.media import Arrays, Measured, MediaItem, MediaPart, Processor
from mt_core.nn import MediaBatch


@dataclass(frozen=True)
class Read:
    """An item that was measured and read."""

    measured: Measured
    arrays: Arrays


def item_of(part: MediaPart, measured: Measured) -> MediaItem:
    """Return the item that a run makes of a part."""
    return MediaItem("media", part.path, part.content, measured.digest)


def inputs_of(items: Sequence[Read]) -> dict[str, Tensor]:
    """Return the arrays of some items, joined as a run joins them."""
    return {name: torch.cat([torch.from_numpy(each.arrays[name]) for each in items]) for name in items[0].arrays}


def batch_of(items: Sequence[Read]) -> MediaBatch:
    """Return items as a model gets them."""
    counts, nothing = tuple(each.measured.features for each in items), torch.empty(0, dtype=torch.int64)
    return MediaBatch(
        (), counts, counts, tuple(each.measured.grid for each in items), nothing, nothing, inputs_of(items)
    )


def bytes_of(arrays: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return everything that arrays are."""
    return {name: (str(each.dtype), each.shape, each.tobytes()) for name, each in arrays.items()}


def mangled(content: bytes) -> Iterator[bytes]:
    """Yield a content with its end cut off, and with bytes changed, in front and anywhere."""
    random = Random(len(content))
    yield from (content[: len(content) // 2], content[:1], content[:-1], b"\0\xff" + content, bytes(64))
    for front in (64, 64, len(content), len(content)):
        changed = bytearray(content)
        for _ in range(3):
            changed[random.randrange(min(front, len(content)))] = random.randrange(256)
        yield bytes(changed)


def content_of(part: MediaPart) -> bytes:
    """Return the bytes of a part, from its file where it has one."""
    return Path(part.path).read_bytes() if part.path else part.content


def read_part(processor: Processor, part: MediaPart) -> Read:
    """Measure a part, and read it as a run does."""
    measured = processor.measure(part)
    return Read(measured, processor.read(item_of(part, measured)))
