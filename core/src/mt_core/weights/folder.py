"""A folder with ``config.json`` and weights: one file or several with an index, safetensors or ``.bin``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.errors import WeightsError
from mt_core.weights.files import (
    Loaders,
    check_file,
    contained_file,
    is_safetensors,
    open_pickle,
    open_safetensors,
    read_json,
)

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
"""Name of the file that describes the model of a folder of weights."""
WHOLE = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def is_folder(path: Path) -> bool:
    """Return whether a folder has a config and weights, or a file of weights has a config beside it."""
    if path.is_file():
        return path.name.endswith((".safetensors", ".bin")) and (path.parent / CONFIG).is_file()
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (*WHOLE, *INDEXES))


def check_folder(path: Path) -> None:
    """Raise ``WeightsError`` for a file that is missing, truncated or outside the folder, and for an index with wrong names.

    Reads headers only and needs no torch: a family's ``values`` calls it, so that it comes before anything is allocated.
    """
    for file, names in _files(path).items():
        held = check_file(file)
        if held and (missing := sorted(names - held)):
            raise WeightsError(
                f"{file} lacks tensors that its index lists: {', '.join(missing)}; fetch the files again"
            )


def open_folder(path: Path) -> Loaders:
    """Return a loader for each tensor of a folder or file. Safetensors are preferred to pickles, an index to a single file."""
    loaders: Loaders = {}
    for file, names in _files(path).items():
        found = open_safetensors(file) if is_safetensors(file) else open_pickle(file)
        if missing := sorted(names - set(found)):
            raise WeightsError(
                f"{file} lacks tensors that its index lists: {', '.join(missing)}; fetch the files again"
            )
        loaders |= {name: found[name] for name in (names or found)}
    return loaders


def _files(path: Path) -> dict[Path, set[str]]:
    """Files of weights, and the names that an index says are in each; none where there is no index."""
    if path.is_file():
        return {contained_file(path.parent, path.name): set()}
    for whole, index in zip(WHOLE, INDEXES, strict=True):
        if (path / index).is_file():
            return _listed_files(path, index)
        if (path / whole).is_file():
            return {contained_file(path, whole): set()}
    raise WeightsError(f"{path} has none of {', '.join((*WHOLE, *INDEXES))}; give a folder with weights")


def _listed_files(path: Path, index: str) -> dict[Path, set[str]]:
    where = read_json(path / index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(file, str) for file in where.values()):
        raise WeightsError(f"{path / index} has no weight_map of names to files; fetch it again")
    files: dict[Path, set[str]] = {}
    for name, file in where.items():
        files.setdefault(contained_file(path, file), set()).add(name)
    return files


def without_tied_head(loaders: Loaders, path: Path, *, embedding: str, head: str) -> Loaders:
    """Drop a tied head that some files repeat; loading the embedding checks that both are equal."""
    if head not in loaders or embedding not in loaders:
        return loaders
    load_embedding, load_head = loaders[embedding], loaders[head]

    def load() -> Tensor:
        import torch

        tensor = load_embedding()
        if not torch.equal(tensor, load_head()):
            raise WeightsError(
                f"{path} ties {head} to {embedding}, but holds different values for them; where the family can train both,"
                " set --model.tie-embeddings false"
            )
        return tensor

    return {name: loader for name, loader in loaders.items() if name != head} | {embedding: load}
