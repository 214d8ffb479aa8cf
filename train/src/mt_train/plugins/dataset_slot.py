"""Which dataset reads a path, where a run gives a path and names none."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import filter as filter_names
from pathlib import Path, PurePosixPath
from typing import Any

from mt_train.plugins.draft import Draft
from mt_train.plugins.hub import is_there

READERS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
    ".md": "text",
    ".tar": "webdataset",
}
"""Ending of a file → the dataset that reads it."""
ARCHIVES = READERS[".tar"]
"""The dataset of archives, which may also be the media of the rows in the files beside them."""
TEXTS = READERS[".txt"]
"""The dataset of texts, whose rows name no media: beside archives they may be their description."""
MARKED_FOLDERS = (
    ({"dataset_dict.json"}, "hf"),  # save_to_disk of several splits,
    ({"dataset_info.json", "state.json"}, "hf"),  # and of one
    ({"index.json", "*.mds*"}, "mds"),
)
"""Files that tell what a folder is, whatever else lies in it → the dataset that reads it."""
_PACKED = (".gz", ".zst", ".bz2", ".xz")


def name_dataset(draft: Draft) -> None:
    """Name the dataset by the ending of its path, where a run gives a path alone; an ending that names none is a fault."""
    given = draft.raw.get("dataset")
    if not isinstance(given, dict) or not given.get("path"):
        return
    _refuse_commas(draft, given["path"])
    if given.get("name") is not None:
        return
    if reader := reader_of(given):
        given["name"] = reader
        draft.origins["dataset.name"] = "the ending of dataset.path"
    else:
        draft.fault("dataset.path", *path_fault(given.pop("path"), "--dataset NAME"))


def path_fault(path: Any, remedy: str) -> tuple[str, str]:
    """Return problem and fix for a path that names no dataset; ``remedy`` is how one is named."""
    return (
        f"no dataset follows from {path!r}: each file has to end in one of {', '.join(READERS)}, all for one dataset.",
        f"Correct the path, or name the dataset that reads it: {remedy}.",
    )


def _refuse_commas(draft: Draft, path: Any) -> None:
    """Report a path that is several files with commas between them, as other options take their values."""
    parts = path.split(",") if isinstance(path, str) else []
    if (
        len(parts) < 2
        or is_there(Path(path))
        or not all(each.strip() and is_there(Path(each.strip())) for each in parts)
    ):
        return
    fix = f"Several are a folder or a pattern in quotes ('data/*{_ending(parts[0])}'), or sets of --dataset concat."
    draft.fault("dataset.path", f"is one path, and {path!r} names {len(parts)} files.", fix)


def reader_of(given: Mapping[str, Any]) -> str | None:
    """Return the dataset for the files of ``path``, by their endings; none where they have no known one, or several."""
    paths = given.get("path")
    listed = [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else []
    folders = [_names(path) for path in listed if isinstance(path, str)]
    readers = {reader for names in folders for reader in _readers(names)} - {None}
    if len(readers) > 1 and TEXTS not in readers:
        readers.discard(ARCHIVES)
    return readers.pop() if len(readers) == 1 else None


def _readers(names: list[str]) -> set[str | None]:
    marked: set[str | None] = {
        reader for marks, reader in MARKED_FOLDERS if all(filter_names(names, mark) for mark in marks)
    }
    return marked or {READERS.get(_ending(name)) for name in names}


def _names(path: str) -> list[str]:
    """The file of a path, or those of a folder."""
    folder = Path(path or "-")  # an empty path is not the folder that one stands in
    try:
        return [each.name for each in folder.iterdir()] if folder.is_dir() else [path]
    except OSError:  # a folder that may not be read, or a name longer than names are: whoever opens it says so
        return [path]


def _ending(name: str) -> str:
    endings = [each.lower() for each in PurePosixPath(name).suffixes]
    return next((each for each in reversed(endings) if each not in _PACKED), "")
