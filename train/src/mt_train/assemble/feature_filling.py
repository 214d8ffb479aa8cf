"""Filling of a store of features: what is missing is shared among the ranks that encode, computed, and written down."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from mt_core.errors import ComponentError, DataError
from mt_core.media import Processor
from mt_core.rows import MediaItem, MediaSpan
from mt_core.tracking.logs import notice
from mt_train.assemble.agreement import act_together, hold_lock_together
from mt_train.assemble.data import RunData
from mt_train.assemble.run_encoder import RunEncoder
from mt_train.checkpoint.files import amount, free_bytes
from mt_train.data.locks import claim, lock_of
from mt_train.data.media.store import FeatureStore
from mt_train.data.media.store_writer import PartWriter, UnusableStoreError
from mt_train.data.samples import EncodedSamples
from mt_train.engine.engine import Engine
from mt_train.engine.precision import DTYPES
from mt_train.engine.processes import all_reduce, gather_texts, smallest

TOGETHER = 32
"""Items between two agreements of the ranks, which so never wait for each other for long."""

_LINE_SECONDS = 10.0
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class _Place:
    """Where an item stands in the rows: inline content is not kept in memory twice."""

    samples: EncodedSamples
    number: int
    place: int

    @property
    def span(self) -> MediaSpan:
        return self.samples.media_of(self.number)[self.place]


class Filling:
    """Fills the store of one encoder; ``module`` computes, and is ``None`` on a rank that does not encode."""

    def __init__(
        self, encoder: RunEncoder, module: nn.Module | None, store: FeatureStore, data: RunData, engine: Engine
    ) -> None:
        self._encoder, self._module, self._store, self._data = encoder, module, store, data
        self._plan, self._process = engine.plan, engine.process
        self._processor: Processor = encoder.component.processor(encoder.options)

    def fill(self) -> None:
        """Compute and write what the rows need and the store has not, and open it on all ranks. Collective."""
        store, is_main = self._store, self._process.is_main
        missing = self._together(self._missing)
        if self._sum(len(missing)):
            with hold_lock_together(partial(self._together, self._claim), self._say_waiting):
                self._together(self._refuse_unseen)
                self._together(lambda: store.open(repair=notice) if is_main else None)
                self._together(store.open)
                self._compute([each for each in missing.items() if each[0] not in store])
        store.remember()
        self._together(store.open)
        self._refuse_apart()

    # ------------------------------------------------------------------------------------------------- what is missing

    def _missing(self) -> dict[bytes, _Place]:
        """Return what this rank has to compute, by key. Items of one content fall to one rank."""
        self._store.open()
        ranks, found = self._plan.sharing_ranks, dict[bytes, _Place]()
        if not self._plan.embeds(self._process.rank):
            return found
        seen = set[tuple[str, bytes]]()
        for item, place in self._items():
            share = int.from_bytes(hashlib.sha256(item.digest or item.content).digest()[:8], "big") % ranks
            if share != self._process.rank:
                continue
            about = (item.path, item.digest if item.path else hashlib.sha256(item.content).digest())
            if about not in seen and (key := self._store.key_of(item)) not in self._store:
                found.setdefault(key, place)
            seen.add(about)
        return found

    def _items(self) -> Iterator[tuple[MediaItem, _Place]]:
        """Yield every item of the encoder, and where it stands."""
        for samples in (self._data.train, self._data.held_out):
            for number in range(len(samples)):
                for place, span in enumerate(samples.media_of(number)):
                    if span.item.encoder == self._encoder.name:
                        yield span.item, _Place(samples, number, place)

    # ------------------------------------------------------------------------------------------------------- computing

    def _compute(self, missing: Sequence[tuple[bytes, _Place]]) -> None:
        """Compute what is missing, so many items between two agreements, on whichever rank something fails."""
        store = self._store
        size = DTYPES[self._plan.dtype].itemsize * store.width * sum(place.span.features for _, place in missing)
        self._announce(self._sum(len(missing)), self._sum(size))
        rounds, last = -smallest(-math.ceil(len(missing) / TOGETHER)), time.monotonic()
        writer = PartWriter(store.folder, store.width)
        try:
            for number in range(rounds):
                part = missing[number * TOGETHER : (number + 1) * TOGETHER]
                self._together(partial(self._encode, part, writer))
                if self._process.is_main and time.monotonic() - last > _LINE_SECONDS:
                    last = time.monotonic()
                    notice(f"computing features: {100 * (number + 1) / rounds:.0f}%")
        finally:
            writer.close()
        self._together(writer.refuse_unwritten)

    def _encode(self, items: Sequence[tuple[bytes, _Place]], writer: PartWriter) -> None:
        """Compute some items, one at a time: what stands beside an item may change the last bits of its features."""
        spans = [place.span for _, place in items]
        reader = self._data.train.reader
        assert reader is not None, "rows of a run with encoders have a reader"
        arrays = reader.read_all(self._processor, [span.item for span in spans])
        for (key, _), span, read in zip(items, spans, arrays, strict=True):
            assert self._module is not None, "who does not encode has no items"
            inputs = {name: torch.from_numpy(np.asarray(each)).to(self._process.device) for name, each in read.items()}
            with torch.no_grad():
                features_NW: Tensor = self._module(inputs, [span.features])
            if features_NW.shape != (span.features, writer.width):
                raise ComponentError(
                    f"encoder {self._encoder.name} made features {tuple(features_NW.shape)} of an item that was measured as"
                    f" {(span.features, writer.width)}; its processor and its module do not agree"
                )
            if self._store.key_of(span.item) != key:
                raise DataError(
                    f"{span.item.path} changed while its features were computed; leave it as it is, and start again"
                )
            writer.add(key, features_NW)

    def _announce(self, count: int, size: int) -> None:
        """Say how much is written. Raises ``UnusableStoreError`` where there is no room for it. Collective."""
        folder = self._store.folder

        def announce() -> None:
            if not count or not self._process.is_main:
                return
            kinds = ", ".join(sorted(self._encoder.component.reads))
            text = f"features of {count:,} items ({kinds}) of {amount(size // count)}: {amount(size)} in {folder}"
            free = free_bytes(folder)
            if size > free:
                raise UnusableStoreError(
                    f"{text}, which has room for {amount(free)}; choose another folder (--encoders.{self._encoder.name}.features FOLDER),"
                    " or leave features out"
                )
            notice(f"notice: {text}")

        self._together(announce)

    # -------------------------------------------------------------------------------------------------------- agreement

    def _sum(self, number: int) -> int:
        return int(all_reduce(torch.tensor(number, device=self._process.device)).item())

    def _together(self, act: Callable[[], _Result]) -> _Result:
        """Do something with the folder on every rank. Raises on all of them what the first one says that could not."""
        return act_together(partial(_name_folder, act), UnusableStoreError, DataError, ComponentError)

    def _claim(self) -> int | None:
        """Return a handle on the lock of the folder, on the first rank; ``None`` while another run has it."""
        if not self._process.is_main:
            return None
        self._store.folder.mkdir(parents=True, exist_ok=True)
        return claim(lock_of(self._store.folder))

    def _say_waiting(self) -> None:
        if self._process.is_main:
            notice(f"waiting for another run that computes the same features ({lock_of(self._store.folder)})")

    def _refuse_unseen(self) -> None:
        """Raise ``UnusableStoreError`` on a rank that does not see the lock of the first one."""
        if not lock_of(self._store.folder).exists():
            raise self._apart()

    def _refuse_apart(self) -> None:
        """Raise ``UnusableStoreError`` unless all ranks see the same folder; another run may write into it meanwhile."""
        store = self._store
        parts = [set(json.loads(text)) for text in gather_texts(json.dumps(sorted(store.parts)))]

        def look_again() -> None:
            store.open()
            if not set.union(*parts) <= store.parts:
                raise self._apart()

        if any(each != parts[0] for each in parts):
            self._together(look_again)

    def _apart(self) -> UnusableStoreError:
        return UnusableStoreError(
            f"{self._store.folder} is not the same folder on every rank; encoders.{self._encoder.name}.features has to be one that all"
            " nodes share"
        )


def _name_folder(act: Callable[[], _Result]) -> _Result:
    """Do something with the folder. Raises ``UnusableStoreError`` for an ``OSError``."""
    try:
        return act()
    except OSError as error:
        raise UnusableStoreError(
            f"features cannot be kept: {error.filename or ''}: {error.strerror or error}. Choose another folder"
            " (--encoders.NAME.features FOLDER), or leave features out"
        ) from error
