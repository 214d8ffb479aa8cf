"""Media of a batch are read: the inputs of every encoder, those of a dummy where a batch has no item of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mt_core.errors import DataError
from mt_core.media import Arrays, DescribesItems, Processor
from mt_core.nn import Batch, MediaBatch
from mt_core.rows import MediaItem, MediaSpan
from mt_train.data.media.store import FeatureStore
from mt_train.data.processors import count_processors

MOST_THREADS = 8
MOST_AHEAD = 64
"""Items that are read ahead at once: their arrays are in memory until they are used."""
MOST_PICTURE_BYTES = 64 * 1024
"""Bytes of a picture that people are shown; a larger one is left out."""

_PNG = b"\x89PNG\r\n\x1a\n"


@runtime_checkable
class ShowsItems(Protocol):
    """A processor that has a small PNG of an item, for people."""

    def thumbnail(self, item: MediaItem) -> bytes: ...


def _default_threads() -> int:
    return min(MOST_THREADS, count_processors())


@dataclass(frozen=True)
class MediaReader:
    """Reads media for the encoders of a run, and says what they are.

    Items are read in ``threads``, those of the next step while this one is computed (``read_ahead``); with 0 where they are asked for.
    That changes no byte: reading is a function of the content.
    """

    processors: Mapping[str, Processor]
    """By the name of the encoder."""
    threads: int = field(default_factory=_default_threads)
    stores: Mapping[str, FeatureStore] = field(default_factory=dict)
    """By the same; these have the features of all items, so that nothing else is read, and no rank calls the encoder."""
    _ahead: dict[MediaItem, Future[Arrays]] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the inputs of every encoder, or with the features of those that are stored.

        Raises ``DataError`` for an item that cannot be read any more.
        """
        media = {name: self._fill(name, batch.media.get(name), each) for name, each in self.processors.items()}
        return replace(batch, media=media)

    def read_ahead(self, items: Iterable[MediaItem]) -> None:
        """Begin to read what comes next, ``MOST_AHEAD`` items of it; what was begun before is forgotten. A fault is raised by whoever asks
        for the item."""
        for begun in self._ahead.values():
            begun.cancel()
        self._ahead.clear()
        if self.threads:
            first = islice(dict.fromkeys(item for item in items if item.encoder not in self.stores), MOST_AHEAD)
            self._ahead.update((item, self._begin(self.processors[item.encoder], item)) for item in first)

    def describe(self, span: MediaSpan) -> str:
        """Format an item for people: ``⟨image 336×336 → 576 tokens: photo.jpg⟩``."""
        processor, what = self.processors[span.item.encoder], span.item.encoder
        if isinstance(processor, DescribesItems):
            with suppress(DataError):  # it is gone since the rows were encoded; who reads it says so
                what = processor.describe(span.item)
        where = f": {span.item.path}" if span.item.path else ""
        return f"⟨{what} → {span.tokens} tokens{where}⟩"

    def picture(self, span: MediaSpan) -> str:
        """Return a small picture of an item as a ``data:`` URI; empty where there is none."""
        processor = self.processors[span.item.encoder]
        if isinstance(processor, ShowsItems):
            with suppress(DataError):
                content = processor.thumbnail(span.item)
                if content.startswith(_PNG) and len(content) <= MOST_PICTURE_BYTES:
                    return f"data:image/png;base64,{b64encode(content).decode()}"
        return ""

    def _fill(self, name: str, media: MediaBatch | None, processor: Processor) -> MediaBatch:
        if (store := self.stores.get(name)) is not None:
            return self._look_up(media, processor, store)
        if media is None:
            measured, arrays = processor.dummy()
            nothing = torch.empty(0, dtype=torch.int64)
            return MediaBatch((), (measured.features,), (), (measured.grid,), nothing, nothing, _join([arrays]))
        return replace(media, inputs=_join(self.read_all(processor, media.items)))

    def _look_up(self, media: MediaBatch | None, processor: Processor, store: FeatureStore) -> MediaBatch:
        if media is None:
            measured, _ = processor.dummy()
            nothing, none_NW = torch.empty(0, dtype=torch.int64), store.empty(measured.features)
            return MediaBatch((), (measured.features,), (), (measured.grid,), nothing, nothing, stored_NW=none_NW)
        each_of = _pool(self.threads).map if self.threads else map
        return replace(media, stored_NW=torch.cat(list(each_of(store.read, media.items, media.features))))

    def read_all(self, processor: Processor, items: Sequence[MediaItem]) -> list[Arrays]:
        """Read some items, in threads. Raises ``DataError`` for one that cannot be read any more."""
        if not self.threads:
            return [_read(processor, item) for item in items]
        begun = [self._ahead.get(item) or self._begin(processor, item) for item in items]
        return [each.result() for each in begun]

    def _begin(self, processor: Processor, item: MediaItem) -> Future[Arrays]:
        return _pool(self.threads).submit(_read, processor, item)


def _read(processor: Processor, item: MediaItem) -> Arrays:
    try:
        return processor.read(item)
    except OSError as error:
        raise DataError(
            f"{item.path} cannot be read any more: {error.strerror or error}. Put it back, and resume the run"
        ) from error


def _join(items: Sequence[Arrays]) -> dict[str, Tensor]:
    """Arrays of all items, one after another along their first dimension."""
    names = items[0].keys()
    return {name: torch.from_numpy(np.concatenate([np.asarray(item[name]) for item in items])) for name in names}


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that read: libraries for pictures and sounds do not hold the interpreter meanwhile."""
    return ThreadPoolExecutor(threads, thread_name_prefix="media")
