"""WebDataset: samples in tar files, as consecutive members of one name with other endings (https://github.com/webdataset/webdataset).

Nothing is unpacked: samples are read where they lie, by their number (``shard_index``), or from the front while a run trains.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from mt_core import DataError, Row
from mt_core.files import FileConfig

from .file_stream import FileStream
from .load_cache import LoadCache
from .shard_index import ShardIndex, load_index
from .shard_patterns import shards_of
from .shard_samples import SampleForm, Shard
from .shard_values import PICKLES, is_read, kind_of

_OPEN = 4
"""Shards that stay open, with their indexes."""

_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How gzip and zstd begin."""


class WebDatasetConfig(FileConfig):
    """Shards, and what of their samples is read."""

    path: str = Field(
        min_length=1,
        description="shard; a folder (all *.tar below it, sorted); a pattern such as 'data/*.tar' or 'data/{00000..00127}.tar'; .tar.gz"
        " and .tar.zst too",
    )
    endings: tuple[str, ...] = Field(
        (),
        min_length=0,
        description="endings of the members to read, such as [jpg, json]; none reads all that are known",
    )
    text_field: str = Field("text", min_length=1, description="field of a row for the member that ends in .txt")
    fields: dict[str, str] = Field(
        {},
        min_length=0,
        description="fields to write: name -> text with {fields} of the sample, such as {text: '<image> {text}'}",
    )
    streaming: bool = Field(
        False, description="read shards from the front while the run trains, and look at no other beforehand"
    )

    @field_validator("path", "eval_path")
    @classmethod
    def _runs_nothing(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("pipe:"):
            raise ValueError(
                f"{value[:60]!r} is a command, and none is run; give the address itself, such as s3://bucket/a.tar"
            )
        return value

    @field_validator("endings")
    @classmethod
    def _are_read(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(each.lstrip(".").lower() for each in value)
        if unread := [each for each in found if not is_read(each)]:
            raise ValueError(
                f"members that end in .{', .'.join(unread)} are not read; name txt, json, cls, npy, or those of images and sounds, such as"
                " jpg and wav"
            )
        return found

    @field_validator("text_field", "fields")
    @classmethod
    def _leaves_the_id(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        if value == "id" or (isinstance(value, dict) and "id" in value):
            raise ValueError("'id' is the place of a sample, as a.tar:12, and is not written; take another name")
        return value

    @property
    def form(self) -> SampleForm:
        """Return the choice of members, and their names, for readers of samples."""
        return SampleForm(self.endings, self.text_field, tuple(self.fields.items()))


class ShardRows:
    """Samples as rows, by their number. The shards that were read last stay open; of the others one number is in memory."""

    def __init__(self, files: Sequence[Path], form: SampleForm) -> None:
        self._files, self._form = tuple(files), form
        self._kept = LoadCache(Shard, _OPEN)
        self._begins = list(accumulate((_survey(path, load_index(path), form) for path in files), initial=0))

    def __len__(self) -> int:
        return self._begins[-1]

    def row(self, index: int) -> Row:
        """One sample. Raises ``DataError`` with shard and member for one that cannot be used."""
        number = bisect_right(self._begins, index) - 1
        shard: Shard = self._kept.get(self._files[number])
        return shard.row(index - self._begins[number], self._form)


class ShardStream(FileStream):
    """Samples in the order of the shards, of which one is open. The state is a shard and the number of samples that were read of it."""

    def __init__(self, files: Sequence[Path], form: SampleForm) -> None:
        super().__init__(files)
        self._form = form

    def rows(self, epoch: int, seed: int) -> Iterator[Row | DataError]:
        """The samples, the same in each epoch. One that cannot be used is given as its fault."""
        start = self.take_start()
        first, begin = start.get("file", 0), start.get("sample", 0)
        for number, path in enumerate(self._files[first:], start=first):
            _refuse_packed(path)
            shard = Shard(path)
            samples = _survey(path, shard.index, self._form)
            if begin > samples:
                raise DataError(
                    f"the run stopped behind sample {begin} of {path.absolute()}, which has {samples} now. Put the shard back"
                )
            for sample in range(begin, samples):
                self._state = {"file": number, "name": path.name, "sample": sample + 1}
                yield _row(shard, sample, self._form)
            begin = 0


def _row(shard: Shard, sample: int, form: SampleForm) -> Row | DataError:
    try:
        return shard.row(sample, form)
    except DataError as fault:
        return fault


def _refuse_packed(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror}. Check its permissions") from error
    if head.startswith(_PACKED):
        raise DataError(
            f"{path.absolute()} is compressed, and its samples are found by their place. Decompress it, or leave dataset.streaming out,"
            " which decompresses every shard once"
        )


def _survey(path: Path, index: ShardIndex, form: SampleForm) -> int:
    """Count the samples of a shard, and tell what of it is not read. Raises ``DataError`` where there is nothing to read."""
    endings = index.about["endings"]
    if not index.samples:
        raise DataError(
            f"{path.absolute()} has no samples: files with an ending, such as 0001.jpg and 0001.json. Write some into it, or take it out of"
            " dataset.path"
        )
    taken = [ending for ending in endings if form.takes(ending)]
    if not form.endings and (pickles := [each for each in endings if kind_of(each) in PICKLES]):
        raise DataError(
            f"{path.absolute()} has members that end in .{pickles[0]} ({endings[pickles[0]][1]}): pickles, which may run code when they are"
            f" loaded, and are not read. Name the endings to read, such as --dataset.endings '[{', '.join(taken) or 'json'}]', or write"
            " their content as .json or .npy"
        )
    if not taken:
        raise DataError(
            f"{path.absolute()} has no member that is read, only .{', .'.join(sorted(endings)[:8])}. Write samples with .txt, .json, .cls,"
            " .npy, images or sounds, or correct dataset.endings"
        )
    if not form.endings:
        for ending in sorted(endings.keys() - taken):
            _warn_once(f"members that end in .{ending} are not read, in shards of {path.absolute().parent}")
    if index.about["unnamed"][0]:
        _warn_once(f"members whose names have no ending belong to no sample, in shards of {path.absolute().parent}")
    return index.samples


@cache
def _warn_once(message: str) -> None:
    logging.getLogger("mt_core").warning(message)


def shard_files(config: WebDatasetConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """The files of a split. A stream names none."""
    return None if config.streaming else shards_of(config, split)


def build_shards(config: WebDatasetConfig, *, split: Literal["train", "eval"]) -> ShardRows | ShardStream | None:
    """The samples of a split."""
    files = shards_of(config, split)
    if files is None:
        return None
    return ShardStream(files, config.form) if config.streaming else ShardRows(files, config.form)
