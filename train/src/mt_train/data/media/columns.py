"""Spans of media as columns of numbers and bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from mt_core.rows import MediaItem, MediaSpan
from mt_train.data.columns import MEDIA_NUMBERS

_BETWEEN = b"\0"


def add_spans(grown: Mapping[str, array[Any]], spans: Iterable[MediaSpan]) -> None:
    """Append the media of one sample to the columns."""
    for span in spans:
        grown["media"].extend((span.start, span.tokens, span.features, *(span.grid or (0, 0, 0))))
        item = span.item
        head = (item.encoder.encode(), item.digest.hex().encode(), item.path.encode("utf-8", "surrogateescape"))
        grown["media_items"].frombytes(_BETWEEN.join((*head, item.content)))
        grown["media_item_ends"].append(len(grown["media_items"]))
    grown["media_ends"].append(len(grown["media"]))


def spans_of(column: Callable[[str], NDArray[Any]], number: int) -> tuple[MediaSpan, ...]:
    """Return the media of a sample."""
    first, last = (int(end) // MEDIA_NUMBERS for end in column("media_ends")[number : number + 2])
    if first == last:
        return ()
    numbers = column("media")[first * MEDIA_NUMBERS : last * MEDIA_NUMBERS].reshape(-1, MEDIA_NUMBERS).tolist()
    ends, items = column("media_item_ends"), column("media_items")
    found = []
    for place, (start, tokens, features, *grid) in enumerate(numbers, first):
        encoder, digest, path, content = items[ends[place] : ends[place + 1]].tobytes().split(_BETWEEN, 3)
        item = MediaItem(
            encoder.decode(), path.decode("utf-8", "surrogateescape"), content, bytes.fromhex(digest.decode())
        )
        found.append(MediaSpan(start, tokens, item, features, (grid[0], grid[1], grid[2]) if any(grid) else None))
    return tuple(found)
