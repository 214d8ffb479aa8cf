"""The identity of a run's rows: what their tokens follow from (the key of the token cache), and what tells them from others.

Nothing that the run does with them is in it. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from mt_core.components import Component, DatasetComponent
from mt_core.config.base import MtConfig
from mt_core.data.text_ids import begin_ids
from mt_core.errors import CheckpointError, DataError
from mt_core.files.config import PINS
from mt_core.media import EncoderConfig
from mt_core.plugins.host import Offer
from mt_core.protocols import Tokenizer
from mt_train.assemble.parts import Parts
from mt_train.assemble.portable_names import exists, files_in_options, name_files, stands_for_rows, without_places
from mt_train.config.run import RunConfig, SlotRef
from mt_train.data.encoding import Rules
from mt_train.data.file_hashes import hash_files
from mt_train.plugins.composition import Part
from mt_train.plugins.lock import code_hash, installed_version

AUTO_BYTES = 50_000_000
"""Files of fewer bytes are encoded in memory each time (``data.cache: auto``): that takes seconds."""

BAD_ROWS = frozenset({"on_bad_row", "max_bad_rows"})
"""Keys of the ``data`` section that say what bad rows mean; asked again whenever the cache is opened."""

NO_RULE = BAD_ROWS | {"reader", "media"}
"""Rules that a key does not have as they are; those of media are in it as the options and the code of the encoders."""

BESIDE_TOKENS = BAD_ROWS | {"cache", "workers", "strict", "prove", "eval", "shuffle", "shuffle_buffer"}
BESIDE_TOKENS |= {"batching", "packing", "packing_features", "pad_multiple", "group_by_length"}
"""Keys of the ``data`` section that change no token of a row."""

LIBRARIES = ("jinja2", "sentencepiece", "tiktoken", "tokenizers", "transformers")
"""Libraries that read texts and render templates beside the core and its plugins."""

CODE = ("mt_core", "mt_train")
"""Packages whose code reads, shapes and encodes rows, whoever offers the components."""

_OF_PROCESSORS = {".json", ".model", ".txt"}
"""Ends of the files beside an encoder's weights that say what an item becomes: its config, processor and vocabulary."""

_SENTENCE = "The quick brown fox's 12 jumps, over 3.5 lazy dogs: naïve façade, Ελλάδα, 日本語!\n\tif x == 0:\n"

Split = Literal["train", "eval"]
Files = Mapping[str, Sequence[Path] | None]
"""The files of each split, and of ``data.eval`` where it is a path; of a dataset that is made of others theirs, too (``train.0``)."""


def source_files(parts: Parts) -> Files | None:
    """The files that rows come from; ``None`` when the dataset, or one that it is made of, does not say."""
    component, config = parts.offers["dataset"].component, parts.config
    inner: dict[str, Sequence[Path] | None] = {}
    named = partial(_files, component, parts=parts.made_of.get("dataset"), inner=inner)
    files = {"train": named(config.dataset.options, split="train", place="train")}
    if isinstance(config.data.eval, str):
        with naming_eval(config):
            files["data.eval"] = named(evaluation_options(config), split="train", place="data.eval")
    if None in files.values():
        return None
    return {**files, "eval": named(config.dataset.options, split="eval", place="eval"), **inner}


def _files(
    component: Component,
    options: MtConfig,
    *,
    parts: Sequence[Part] | None,
    split: Split,
    place: str,
    inner: dict[str, Sequence[Path] | None],
) -> Sequence[Path] | None:
    """The files of a dataset; those of its parts come into ``inner``, under the place of the dataset and their numbers."""
    if not isinstance(component, DatasetComponent):
        return None
    if parts is None:
        return component.files(options, split)
    found = []
    for number, part in enumerate(parts):
        own = f"{place}.{number}"
        found.append(_files(part.offer.component, part.options, parts=part.parts, split=split, place=own, inner=inner))
        inner[own] = found[-1]
    return component.files(options, split, parts=found)


def evaluation_options(config: RunConfig) -> MtConfig:
    """The dataset's options where ``data.eval`` is a path: those of the run with this path, but for the hash of its own file."""
    given = config.dataset.options
    kept = given.model_dump(exclude_unset=True, exclude=set(PINS))
    return type(given)(**{**kept, "path": config.data.eval})


@contextmanager
def naming_eval(config: RunConfig) -> Iterator[None]:
    """A ``DataError`` of its rows names ``data.eval``."""
    try:
        yield
    except DataError as error:
        raise DataError(f"data.eval={config.data.eval}: {error}") from error


def stat_files(files: Files) -> dict[Path, os.stat_result]:
    """Return what the file system says of each file."""
    return {path: path.stat() for paths in files.values() for path in paths or ()}


@dataclass(frozen=True)
class Identity:
    """Everything that the encoded rows of a run follow from; ``memory`` is a folder that remembers the hashes of files."""

    config: RunConfig
    files: Files
    memory: Path
    rules: Mapping[str, Any]
    """All but the rows and the options of the dataset."""
    by_place: bool = False
    """Whether rows are told apart by where their files lie, too, as those that name files beside them are."""
    _known: dict[str, list[tuple[str, str]]] = field(default_factory=dict, repr=False)

    def key(self, part: str) -> str:
        """The name of the folder for a part of the run (train, held_out, every): two that are the same rows share it."""
        return hashlib.sha256(json.dumps(self._content(part), sort_keys=True).encode()).hexdigest()[:40]

    def made_of(self, part: str) -> dict[str, str]:
        """Return a short hash of each thing that the key is a hash of, by name: it tells what differs and not what it is."""
        found = {}
        for name, value in self._content(part).items():
            inner = value if isinstance(value, dict) else {"": value}
            for place, each in inner.items():
                digest = hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()
                found[f"{name}.{place}".rstrip(".")] = digest[:12]
        return found

    def _content(self, part: str) -> dict[str, Any]:
        source, cut = self._rows(part)
        if part != "train" and (limit := self.config.eval.limit) is not None:
            cut = [*(cut or [part]), "first", limit]
        dataset = self.config.dataset
        options = evaluation_options(self.config) if source == "data.eval" else dataset.options
        return {
            "rows": self._hashes_of(source),
            "dataset": {"name": dataset.name, **self._options(options.model_dump(mode="json"))},
            "split": "eval" if source == "eval" else "train",
            "parts": self._files_of_parts(source),
            "cut": cut,
            **self.rules,
        }

    def _hashes_of(self, source: str) -> list[tuple[str, str]]:
        if source not in self._known:
            paths = self.files[source] or ()
            named = [(str(path), path) for path in paths] if self.by_place else name_files(paths)
            self._known[source] = hash_files(named, self.memory)
        return self._known[source]

    def _files_of_parts(self, source: str) -> dict[str, int]:
        """Count the files of each dataset that the rows are mixed of: whose a file is says neither its name nor an option's ``files``."""
        begin = f"{source}."
        return {name: len(paths or ()) for name, paths in self.files.items() if name.startswith(begin)}

    def _options(self, options: dict[str, Any]) -> Any:
        return options if self.by_place else without_places(options, stands_for_rows)

    def _rows(self, part: str) -> tuple[str, list[Any] | None]:
        """Return which source the part is of, and which cut of it; no cut is all of it (``assemble.sources.rows_of``)."""
        wanted, apart = self.config.data.eval, self.files["eval"] is not None
        if part == "every":
            return ("eval" if apart else "train"), None
        if isinstance(wanted, str):
            return ("train" if part == "train" else "data.eval"), None
        if part == "held_out" and apart and wanted is not None:
            return "eval", None
        whole = part == "train" and (apart or wanted is None)
        return "train", None if whole else [part, wanted]


def identity(parts: Parts, tokenizer: Tokenizer, rules: Rules, files: Files, memory: Path) -> Identity:
    """Return everything that the encoded rows of a run follow from."""
    config, kinds = parts.config, ("tokenizer", "objective")
    slots = {kind: getattr(config, kind) for kind in kinds}
    by_place = bool(parts.encoders)  # rows name media below the folders of their files
    read = [named for slot in slots.values() for named in files_in_options(slot.options)]
    read += [(str(path), path) for each in parts.encoders for path in processor_files(each.path)]
    raw = {kind: slot.as_raw() for kind, slot in slots.items()}
    kept = {each.name: getattr(rules, each.name) for each in fields(rules) if each.name not in NO_RULE}
    hashed = cache(code_hash)  # most parts are in the same package
    of_rules = {
        "rules": {**kept, "stop_ids": sorted(rules.stop_ids)},
        "components": {kind: each if by_place else without_places(each, exists) for kind, each in raw.items()}
        | {place: _without_store(parts.chosen[place]) for place in _places_of_parts(parts)},
        "code": {place: hashed(package_of(offer.component.build)) for place, offer in sorted(_makers(parts).items())}
        | {"core": code_hash(*CODE)},
        "libraries": {name: installed_version(name) for name in LIBRARIES},
        "read": hash_files(read, memory),
        "tokenizer": [tokenizer_digest(tokenizer), tokenizer.chat_template],
        "data": config.data.model_dump(mode="json", exclude=set(BESIDE_TOKENS)),
    }
    return Identity(config, files, memory, of_rules, by_place)


def processor_files(weights: Path | None) -> list[Path]:
    """Return the files beside an encoder's weights, a folder or a file, that its processor may read; none where they are drawn."""
    if weights is None:
        return []
    folder = weights if weights.is_dir() else weights.parent
    return [path for path in sorted(folder.glob("*")) if path.suffix in _OF_PROCESSORS and path.is_file()]


def _makers(parts: Parts) -> dict[str, Offer]:
    """Return whose code makes the tokens, by place: dataset, tokenizer and objective, their parts, and what these take of the run."""
    slots = {"dataset", "tokenizer", "objective", *(f"encoder:{each.name}" for each in parts.encoders)}
    found = {place: offer for place, offer in parts.offers.items() if place.partition(".")[0] in slots}
    while more := {
        place: parts.offers[place]
        for kind in {kind for offer in found.values() for kind in offer.component.uses}
        for place in parts.chosen
        if place.partition(":")[0] == kind and place not in found
    }:
        found |= more
    return found


def _without_store(slot: SlotRef) -> dict[str, Any]:
    """The options, without that of an encoder that says where its features are kept: it changes no token."""
    is_encoder = isinstance(slot.options, EncoderConfig)
    return {key: value for key, value in slot.as_raw().items() if not (is_encoder and key == "features")}


def _places_of_parts(parts: Parts) -> list[str]:
    """Return the places of what the makers take of the run; it is no option of theirs."""
    slots = ("dataset", "tokenizer", "objective")
    return [place for place in _makers(parts) if place in parts.chosen and place not in slots]


def package_of(build: Any) -> str:
    """Return the top-level package of a component's ``build``."""
    module: str = getattr(getattr(build, "func", build), "__module__", "") or ""  # func: of a partial
    return module.partition(".")[0]


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Return a hash that tells a tokenizer from most others: of its size, special ids, reading of a sentence, and what it puts in front."""
    specials = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    content: tuple[object, ...] = (tokenizer.size, *specials, tokenizer.encode(_SENTENCE))
    begin = begin_ids(tokenizer)
    if begin != tuple(token for token in specials[:1] if token is not None):
        content = (*content, begin)  # runs from before tokenizers were asked have the digest without it
    return hashlib.sha256(repr(content).encode()).hexdigest()


def refuse_other_data(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Raise ``CheckpointError`` when the encoded rows are not those of the run: files or tokenizer have changed since.

    A position in other rows would mean nothing. Checkpoints that do not say what they saw are taken as they are.
    """
    if before is None or before["sha256"] == now["sha256"]:
        return
    figures = [
        f"{key} {before[key]:,} then, {value:,} now"
        for key, value in now.items()
        if isinstance(value, int) and isinstance(before.get(key), int) and before[key] != value
    ]
    raise CheckpointError(
        f"{_what_changed(before, now)} not as in the run that saved the checkpoint:"
        f" {'; '.join(figures) or 'as many, and others'}. Put the files and the tokenizer back, or start a new run with"
        " --model.overlay CHECKPOINT/model"
    )


def _what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if "tokenizer" not in before:
        return "the rows, or their tokens, are"
    if before["tokenizer"] == now["tokenizer"]:
        return "the rows are"
    return "the tokenizer is" if before["rows"] == now["rows"] else "the tokenizer and the rows are"
