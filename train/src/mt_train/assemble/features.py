"""Features of frozen encoders, computed once for each content and kept (``encoders.NAME.features``).

They are computed before the first step, by all ranks that encode, item by item: so nobody has to agree later on who calls an encoder, the
size is known before anything is written, and no bit of a feature depends on what stood beside its item.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from os.path import expanduser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mt_core.errors import ComponentError, DataError, MtError, UsageError
from mt_core.files import cache_root
from mt_core.media import Processor
from mt_core.nn import TrainModel
from mt_core.rows import MediaSpan
from mt_core.tracking.logs import notice
from mt_train.assemble.data import RunData
from mt_train.assemble.identity import package_of
from mt_train.assemble.media import MEDIA
from mt_train.assemble.parts import Parts
from mt_train.assemble.run_encoder import RunEncoder
from mt_train.data.locks import claim
from mt_train.data.media.store import FeatureStore, PartWriter, UnusableStoreError
from mt_train.data.samples import EncodedSamples
from mt_train.engine.build import DTYPES, gather_parameters, is_partitioned
from mt_train.engine.engine import Engine
from mt_train.engine.processes import all_reduce, gather_texts, ranks_where, share_text, smallest
from mt_train.plugins.lock import code_hash, installed_version

FOLDER = "features"
"""Folder of the token cache for ``features: auto``."""
VERSION = 1
"""Of how features are computed and kept; another number is another key."""
BESIDE_FEATURES = {"projector", "weights", "begin", "end", "token", "limit", "features"}
"""Options of an encoder that change no feature; weights are in the key by their values."""
TOGETHER = 32
"""Items between two agreements of the ranks, which so never wait for each other for long."""

_ASK_SECONDS = 0.2
_LINE_SECONDS = 10.0


def refuse_trained(parts: Parts, model: TrainModel) -> None:
    """Raise ``UsageError`` for an encoder that has ``features`` and trains: they would be those of other weights after a step."""
    for each in parts.encoders:
        begin = f"{MEDIA}{each.name}.encoder."
        trained = [name for name, value in model.named_parameters() if name.startswith(begin) and value.requires_grad]
        if each.options.features is not None and trained:
            raise UsageError(
                f"encoders.{each.name}.features={each.options.features}, and {len(trained)} tensors of this encoder are trained"
                f" ({trained[0]}, …), so that its features change with each step; leave features out, or train nothing of it:"
                f" --train.disable '{begin}*'"
            )


def with_features(parts: Parts, data: RunData, engine: Engine) -> RunData:
    """Return the rows with the features of all media of encoders that keep them, computed where they are not there yet. Collective.

    Raises ``UsageError`` for a stream, ``UnusableStoreError`` for a folder that cannot be used, ``DataError`` for an item that cannot be
    read.
    """
    wanted = [each for each in parts.encoders if each.options.features is not None]
    if not wanted:
        return data
    if data.stream is not None:
        raise UsageError(
            f"encoders.{wanted[0].name}.features needs rows that are known before the first step, and this dataset is a stream; leave"
            " features out"
        )
    stores = {each.name: _Filling(parts, each, data, engine).store() for each in wanted}
    for samples in (data.train, data.held_out):
        if samples.reader is not None:
            samples.reader = replace(samples.reader, stores=stores)
    return data


@dataclass(frozen=True)
class _Place:
    """Where an item stands in the rows: inline content is not kept in memory twice."""

    samples: EncodedSamples
    number: int
    place: int

    @property
    def span(self) -> MediaSpan:
        return self.samples.media_of(self.number)[self.place]


class _Filling:
    """Fills the store of one encoder."""

    def __init__(self, parts: Parts, encoder: RunEncoder, data: RunData, engine: Engine) -> None:
        self.parts, self.encoder, self.data, self.engine = parts, encoder, data, engine
        self.plan, self.process = engine.plan, engine.process
        self.processor: Processor = encoder.component.processor(encoder.options)

    def store(self) -> FeatureStore:
        """Return the store with everything that the rows need. Collective."""
        module = self._module()
        key = share_text(self._key(module) if self.process.is_main and module is not None else "")
        root = self.encoder.options.features or ""
        folder = (cache_root() / FOLDER if root == "auto" else Path(expanduser(root))) / key
        store = FeatureStore(folder, self.encoder.component.width(self.encoder.options))
        missing = self._together(lambda: self._missing(store))
        if self._sum(len(missing)):
            with self._lock(folder):
                self._together(lambda: store.open(repair=notice) if self.process.is_main else None)
                self._together(store.open)
                self._fill(store, module, [each for each in missing.items() if each[0] not in store])
        store.remember()
        self._together(store.open)
        self._refuse_apart(store)
        return store

    def _refuse_apart(self, store: FeatureStore) -> None:
        """Raise ``UnusableStoreError`` unless all ranks see the same folder; another run may write into it meanwhile."""
        parts = [set(json.loads(text)) for text in gather_texts(json.dumps(sorted(store.parts)))]

        def look_again() -> None:
            store.open()
            if not set.union(*parts) <= store.parts:
                raise UnusableStoreError(
                    f"{store.folder} is not the same folder on every rank; encoders.{self.encoder.name}.features has to be one that all"
                    " nodes share"
                )

        if any(each != parts[0] for each in parts):
            self._together(look_again)

    # ------------------------------------------------------------------------------------------------- what is missing

    def _missing(self, store: FeatureStore) -> dict[bytes, _Place]:
        """Return what this rank has to compute, by key. Items of one content fall to one rank."""
        store.open()
        ranks, found = self.plan.sharing_ranks, dict[bytes, _Place]()
        if not self.plan.embeds(self.process.rank):
            return found
        seen = set[tuple[str, bytes]]()
        for samples in (self.data.train, self.data.held_out):
            for number in range(len(samples)):
                for place, span in enumerate(samples.media_of(number)):
                    item = span.item
                    about = (item.path, item.digest if item.path else hashlib.sha256(item.content).digest())
                    share = int.from_bytes(hashlib.sha256(item.digest or item.content).digest()[:8], "big") % ranks
                    if item.encoder != self.encoder.name or share != self.process.rank or about in seen:
                        continue
                    seen.add(about)
                    if (key := store.key_of(item)) not in store:
                        found.setdefault(key, _Place(samples, number, place))
        return found

    # ---------------------------------------------------------------------------------------------------------- filling

    def _fill(self, store: FeatureStore, module: nn.Module | None, missing: Sequence[tuple[bytes, _Place]]) -> None:
        """Compute what is missing, so many items between two agreements, on whichever rank something fails."""
        size = DTYPES[self.plan.dtype].itemsize * store.width * sum(place.span.features for _, place in missing)
        self._announce(store.folder, self._sum(len(missing)), self._sum(size))
        rounds, last = -smallest(-math.ceil(len(missing) / TOGETHER)), time.monotonic()
        writer = PartWriter(store)
        try:
            for number in range(rounds):
                part = missing[number * TOGETHER : (number + 1) * TOGETHER]
                self._together(lambda part=part: self._encode(module, part, writer))  # type: ignore[misc]
                if self.process.is_main and time.monotonic() - last > _LINE_SECONDS:
                    last = time.monotonic()
                    notice(f"computing features: {100 * (number + 1) / rounds:.0f}%")
        finally:
            writer.close()
        self._together(writer.refuse_unwritten)

    def _encode(self, module: nn.Module | None, items: Sequence[tuple[bytes, _Place]], writer: PartWriter) -> None:
        """Compute some items, one at a time: what stands beside an item may change the last bits of its features."""
        spans = [place.span for _, place in items]
        reader = self.data.train.reader
        assert reader is not None, "rows of a run with encoders have a reader"
        arrays = reader.read_all(self.processor, [span.item for span in spans])
        for (key, _), span, read in zip(items, spans, arrays, strict=True):
            assert module is not None, "who does not encode has no items"
            inputs = {name: torch.from_numpy(np.asarray(each)).to(self.process.device) for name, each in read.items()}
            with torch.no_grad():
                features_NW: Tensor = module(inputs, [span.features])
            if features_NW.shape != (span.features, writer.store.width):
                raise ComponentError(
                    f"encoder {self.encoder.name} made features {tuple(features_NW.shape)} of an item that was measured as"
                    f" {(span.features, writer.store.width)}; its processor and its module do not agree"
                )
            if writer.store.key_of(span.item) != key:
                raise DataError(
                    f"{span.item.path} changed while its features were computed; leave it as it is, and start again"
                )
            writer.add(key, features_NW)

    def _announce(self, folder: Path, count: int, size: int) -> None:
        """Say how much is written. Raises ``UnusableStoreError`` where there is no room for it."""

        def announce() -> None:
            if not count or not self.process.is_main:
                return
            kinds = ", ".join(sorted(self.encoder.component.reads))
            text = f"features of {count:,} items ({kinds}) of {_bytes(size / count)}: {_bytes(size)} in {folder}"
            free = shutil.disk_usage(folder).free
            if size > free:
                raise UnusableStoreError(
                    f"{text}, which has room for {_bytes(free)}; choose another folder (--encoders.{self.encoder.name}.features FOLDER), or"
                    " leave features out"
                )
            notice(f"notice: {text}")

        self._together(announce)

    # ------------------------------------------------------------------------------------------------------ the encoder

    def _module(self) -> nn.Module | None:
        """Return the encoder as it computes, whole: a copy where ZeRO 3 has divided it; ``None`` where this rank has none."""
        media = self.engine.module.model.media
        if not self.plan.embeds(self.process.rank):
            return None
        assert media is not None, "a run with encoders has them in its model"
        live: nn.Module = media.get_submodule(f"{self.encoder.name}.encoder").eval()
        wanted = dict(live.named_parameters())
        if not any(map(is_partitioned, wanted.values())):
            return live
        with self.process.device:
            module: nn.Module = self.encoder.component.build(self.encoder.options).eval()
        own = dict(module.named_parameters())
        if own.keys() != wanted.keys():
            raise UsageError(
                f"encoders.{self.encoder.name}.features cannot be kept at ZeRO 3 of an encoder that an adapter or a quantizer has changed;"
                " leave features out, or leave the encoder as it is"
            )
        for name, parameter in own.items():
            with gather_parameters([wanted[name]]):
                parameter.data = wanted[name].detach().to(self.process.device).clone()
        for (_, buffer), (_, value) in zip(module.named_buffers(), live.named_buffers(), strict=True):
            buffer.data = value.detach().clone()
        return module

    def _key(self, module: nn.Module) -> str:
        """Return the name of the folder: a hash of all that a feature follows from but the content."""
        offer = self.parts.offers[f"encoder:{self.encoder.name}"]
        content = {
            "version": VERSION,
            "encoder": self.encoder.component.name,
            "options": self.encoder.options.model_dump(mode="json", exclude=BESIDE_FEATURES),
            "weights": _hash_of(module),
            "code": [code_hash(package_of(self.encoder.component.build)), code_hash("mt_core")],
            "libraries": _libraries(offer.plugin.distribution),
            "dtype": self.plan.dtype,
            "device": self.process.device.type,
            "products": torch.get_float32_matmul_precision(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]

    # -------------------------------------------------------------------------------------------------------- agreement

    def _sum(self, number: int) -> int:
        return int(all_reduce(torch.tensor(number, device=self.process.device)).item())

    def _together(self, act: Callable[[], Any]) -> Any:
        """Do something on every rank. Raises on all of them what the first one says that could not."""
        result, failure = None, None
        try:
            result = act()
        except (MtError, OSError) as error:
            failure = error
        if failed := ranks_where(failure is not None):
            kind, text = json.loads(share_text(json.dumps(_described(failure)), source=failed[0]))
            if isinstance(failure, MtError):
                raise failure
            error_type = {each.__name__: each for each in (DataError, ComponentError)}.get(kind, UnusableStoreError)
            raise error_type(text) from failure
        return result

    @contextmanager
    def _lock(self, folder: Path) -> Iterator[None]:
        """Hold the lock of the folder on the first rank, once no other run has it; all wait together, so that nobody waits too long."""
        path, handle = folder.with_name(f"{folder.name}.lock"), None

        def ask() -> int | None:
            if not self.process.is_main:
                return None
            folder.mkdir(parents=True, exist_ok=True)
            return claim(path)

        asked = 0
        while handle is None:
            handle = self._together(ask)
            if share_text("" if handle is None else "held"):
                break
            if not asked and self.process.is_main:
                notice(f"waiting for another run that computes the same features ({path})")
            asked += 1
            time.sleep(_ASK_SECONDS)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)


def _described(error: Exception | None) -> tuple[str, str]:
    """The type of an error, and what it says, for the ranks that have none."""
    if isinstance(error, OSError):
        return (
            "UnusableStoreError",
            f"features cannot be kept: {error.filename or ''}: {error.strerror or error}. Choose another folder"
            " (--encoders.NAME.features FOLDER), or leave features out",
        )
    return type(error).__name__, str(error)


def _hash_of(module: nn.Module) -> str:
    """SHA-256 of all values of a module, under their names."""
    digest = hashlib.sha256()
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        content = value.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}\0".encode())
        digest.update(content.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _libraries(distribution: str) -> dict[str, str | None]:
    """The versions of what computes, and of what the encoder's distribution says that it needs."""
    names = {"torch", "numpy"}
    with suppress(importlib.metadata.PackageNotFoundError):
        names |= {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in importlib.metadata.requires(distribution) or ()}
    return {name: installed_version(name) for name in sorted(names)}


def _bytes(number: float) -> str:
    """Format a size for people: ``1.18 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
