"""Hugging Face ``datasets``: a name of the Hub, a folder of data files, or what ``save_to_disk`` wrote.

Nothing that a dataset brings is executed: ``datasets`` from version 4 on runs no scripts. The token comes from the
environment (``HF_TOKEN``) only.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from os.path import expanduser
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mt_core import DataError, MtConfig, Row, did_you_mean, first_line

from .absent_keys import without_absent_keys
from .file_cache import hold_folder, remove_folder

_LATE = 2 * 10**9
"""Nanoseconds by which a file that is written and then named may be changed after its last byte."""


class HubConfig(MtConfig):
    """Choice of the dataset, and of a part of it."""

    path: str = Field(min_length=1, description="org/name of the Hub, a folder of data files, or one of save_to_disk")
    subset: str | None = Field(None, min_length=1, description="configuration of the dataset, e.g. main")
    split: str = Field("train", min_length=1, description="split to train on; a slice such as train[:1000] too")
    eval_split: str | None = Field(
        None, min_length=1, description="split to evaluate on; without it data.eval holds out rows"
    )
    revision: str | None = Field(None, min_length=1, description="commit, branch or tag on the Hub")
    streaming: bool = Field(
        False, description="read rows from the front while the run trains, and fetch or index nothing beforehand"
    )
    data_files: tuple[str, ...] = Field((), min_length=0, description="files of the dataset to take; none takes all")


class HubRows:
    """Rows of a dataset that ``datasets`` keeps mapped; row 12 of split ``train`` has the id ``path[train]:12``, of a subset
    ``path:subset[train]:12``."""

    def __init__(self, rows: Any, label: str) -> None:
        if not len(rows):
            raise DataError(f"{label} has no rows. Choose another dataset.split.")
        self._rows, self._label = rows, label

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        """The values of one row. Raises ``DataError`` with its place when it cannot be read."""
        place = f"{self._label}:{index + 1}"
        try:
            return {**without_absent_keys(self._rows[index]), "id": place}
        except Exception as error:
            raise DataError(f"{place} cannot be read: {first_line(error)}. Fetch or write the dataset anew.") from error


def hub_files(config: HubConfig, split: Literal["train", "eval"]) -> list[Path] | None:
    """All files of a folder of save_to_disk; else those that ``datasets`` has made of the rows. A stream names none."""
    name = _split(config, split)
    if name is None or config.streaming:
        return None
    folder = Path(expanduser(config.path))
    if _is_saved(folder):
        return sorted(path for path in folder.rglob("*") if path.is_file())
    return [Path(file["filename"]) for file in _load(config, name).cache_files]


class HubStream:
    """Rows of an ``IterableDataset`` in its own order; ids as those of ``HubRows``."""

    def __init__(self, rows: Any, label: str) -> None:
        self._rows, self._label = rows, label
        self._read = 0
        self._start: dict[str, Any] | None = None

    def rows(self, epoch: int, seed: int) -> Iterator[Row]:
        """The rows, the same in each epoch. Raises ``DataError`` with the place of one that cannot be read."""
        start, self._start = self._start, None
        self._rows.load_state_dict(start["rows"] if start else {})  # an empty one is the begin
        self._read = start["read"] if start else 0
        waiting = iter(self._rows)
        while True:
            place = f"{self._label}:{self._read + 1}"
            try:
                values = next(waiting, None)
            except Exception as error:
                raise DataError(
                    f"{place} cannot be read: {first_line(error)}. Fetch or write the dataset anew."
                ) from error
            if values is None:
                return
            self._read += 1
            yield {**without_absent_keys(values), "id": place}

    def state_dict(self) -> dict[str, Any]:
        """Return what ``datasets`` keeps of its place, and the rows before it."""
        return {"read": self._read, "rows": self._rows.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state


def build_hub(config: HubConfig, *, split: Literal["train", "eval"]) -> HubRows | HubStream | None:
    """The rows of a split; ``None`` for evaluation without ``eval_split``."""
    if not config.streaming:
        return hub_rows(config, split=split)
    name = _split(config, split)
    return None if name is None else HubStream(_load(config, name), _label(config, name))


def hub_rows(config: HubConfig, *, split: Literal["train", "eval"]) -> HubRows | None:
    """Return the rows by number."""
    name = _split(config, split)
    return None if name is None else HubRows(_load(config, name), _label(config, name))


def _label(config: HubConfig, split: str) -> str:
    """Name what is read so that no two parts of a dataset share the ids of their rows."""
    files = config.data_files[0] if config.data_files else None
    if files is not None and len(config.data_files) > 1:
        files += f"+{zlib.crc32(repr(config.data_files).encode()):08x}"
    version = f"@{config.revision}" if config.revision else ""
    return ":".join(filter(None, (f"{config.path}{version}", config.subset, files))) + f"[{split}]"


def _split(config: HubConfig, split: Literal["train", "eval"]) -> str | None:
    return config.split if split == "train" else config.eval_split


def _is_saved(folder: Path) -> bool:
    """Return whether ``save_to_disk`` wrote it."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _load(config: HubConfig, split: str) -> Any:
    import datasets

    folder = Path(expanduser(config.path))
    if folder.is_file():
        raise DataError(
            f"{folder.absolute()} is a file, and dataset.path is a folder or a name on the Hub here. Name its folder, and the file in"
            " dataset.data_files, or read it with --dataset jsonl, csv, parquet …"
        )
    try:
        if _is_saved(folder):
            saved = _open_saved(datasets, config, folder, split).with_format(None)  # all columns, and no tensors
            return saved.to_iterable_dataset() if config.streaming else saved
        return datasets.load_dataset(
            str(folder) if folder.exists() else config.path,
            config.subset,
            split=split,
            revision=config.revision,
            data_files=list(config.data_files) or None,
            streaming=config.streaming,
            token=os.environ.get("HF_TOKEN") or False,
            keep_in_memory=False,  # rows in memory have no files to be told apart by
            cache_dir=_own_cache(datasets, folder, config.data_files or ("**",)),
        )
    except DataError:
        raise
    except Exception as error:
        raise DataError(_problem(config, folder, split, error)) from error


def _own_cache(datasets: Any, folder: Path, patterns: Sequence[str]) -> str | None:
    """Return a cache for the rows of files that were changed after the time which they bear, as copied and unpacked ones may be.

    ``datasets`` knows a file by that time alone, and would give the rows that another one had. ``None`` where none was. Those of
    these files' earlier states are removed, unless a process reads them.
    """
    found = {name for pattern in patterns for name in glob(pattern, root_dir=folder, recursive=True)}
    paths = map(folder.joinpath, sorted(found))
    stats = [(str(path), path.stat()) for path in paths if path.is_file()]
    late = [(name, now.st_size, now.st_ctime_ns) for name, now in stats if now.st_ctime_ns - now.st_mtime_ns > _LATE]
    if not late:
        return None
    own = (
        Path(datasets.config.HF_DATASETS_CACHE) / f"changed-{_hash([str(folder.absolute()), *patterns])}-{_hash(late)}"
    )
    hold_folder(own)
    earlier = {path.with_suffix("") for path in own.parent.glob(f"{own.name.rpartition('-')[0]}-*")}  # and their locks
    for other in sorted(earlier - {own}):
        # another person's, in a cache that several share; or another rank has just removed it
        with suppress(FileNotFoundError, PermissionError):
            remove_folder(other)
    return str(own)


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _open_saved(datasets: Any, config: HubConfig, folder: Path, split: str) -> Any:
    """Open what ``save_to_disk`` wrote: a dataset, or several by split. It has no configurations, files or revisions."""
    for key in ("subset", "revision", "data_files"):
        if getattr(config, key):
            raise DataError(f"{folder.absolute()} was written by save_to_disk and has no dataset.{key}. Leave it out.")
    found = datasets.load_from_disk(str(folder))
    is_one = isinstance(found, datasets.Dataset)
    splits = {"train": found} if is_one else dict(found)
    if split in splits:
        return splits[split]
    name = split.partition("[")[0]
    if name not in splits and "+" not in split:
        if is_one:
            raise DataError(
                f"{folder.absolute()} is one dataset without splits. Leave dataset.split and eval_split out, or take a slice of"
                " train, such as train[:90%]."
            )
        raise DataError(
            f"{folder.absolute()} has no split {name!r}. {did_you_mean(name, list(splits))}It has: {', '.join(splits)}."
        )
    return _take_slices(datasets, splits, split)


def _take_slices(datasets: Any, splits: Mapping[str, Any], split: str) -> Any:
    """Return the rows of slices such as ``train[:90%]``, and of several that ``+`` joins, as ``load_dataset`` reads them."""
    sizes = {name: len(rows) for name, rows in splits.items()}
    slices = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
    parts = [splits[each.splitname].select(range(each.from_, each.to)) for each in slices]
    return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)


def _problem(config: HubConfig, folder: Path, split: str, error: Exception) -> str:
    """One message for what ``datasets`` says in many ways."""
    reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    if folder.exists():
        return (
            f"{folder.absolute()} cannot be read as split {split!r}: {reason}. Set dataset.split to one that it has,"
            " dataset.subset to one of its configurations, or dataset.data_files to the files meant."
        )
    return (
        f"{config.path} is no path here, and split {split!r} cannot be had from the Hub or its cache: {reason}. Check the name,"
        " dataset.subset and dataset.split; fetch it where there is a network (`hf download --repo-type dataset NAME`); set"
        " HF_TOKEN for a gated one; or give a folder."
    )
