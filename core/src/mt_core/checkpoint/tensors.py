"""Tensors and numbers on disk: safetensors and JSON only, so that nothing executes when they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mt_core.errors import CheckpointError, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 2 * 2**30
"""Largest size of one file of weights: what is held in memory at a time while a model is written."""

INDEX = "index.json"
Tensors = Mapping[str, "Callable[[], Tensor]"]
"""Name → a function that loads this one tensor."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the mode that the umask gives (the library's own is 0600)."""
    from safetensors.torch import save_file  # torch loads here: finding and listing checkpoints needs none

    refuse_special(path)
    save_file(dict(tensors), str(path))
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def open_tensors(path: Path) -> Tensors:
    """The tensors of one file, each loaded when asked for. Raises ``CheckpointError`` when the file is damaged."""
    refuse_special(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; the file is missing or damaged") from error
    return {name: partial(_load, path, name) for name in names}


def _load(path: Path, name: str) -> Tensor:
    with safe_open(str(path), framework="pt") as file:
        return file.get_tensor(name)  # type: ignore[no-any-return]


def refuse_special(path: Path) -> None:
    """Only regular files are opened or replaced: no links, pipes or devices."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise CheckpointError(f"{path} is not a regular file; remove it or choose another folder")


def write_json(path: Path, content: Any) -> None:
    """Write JSON whose floats read back bit for bit; NaN is refused."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON. Raises ``CheckpointError`` when the file is missing or damaged."""
    refuse_special(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; the file is missing or damaged") from error


class ModelWriter:
    """Writes named tensors into files of bounded size, one after the other, with an index beside them."""

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.shard_bytes = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._bytes = 0
        self._files = 0
        self._index: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor; it is copied or written before the next one is needed."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._bytes + size > self.shard_bytes:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._bytes += size

    def close(self) -> None:
        """Write what is left, and the index."""
        self._flush()
        write_json(self.folder / INDEX, self._index)

    def _flush(self) -> None:
        if not self._pending:
            return
        self._files += 1
        file = f"model-{self._files:05d}.safetensors"
        write_tensors(self.folder / file, self._pending)
        self._index.update(dict.fromkeys(self._pending, file))
        self._pending, self._bytes = {}, 0


def open_model(folder: Path) -> Tensors:
    """The weights that ``ModelWriter`` wrote, by name."""
    index = read_json(folder / INDEX)
    files: dict[str, Tensors] = {}
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name, file in index.items():
        if Path(file).name != file:
            raise CheckpointError(
                f"{folder / INDEX} names {file!r}, which is outside its folder; the index is not ours"
            )
        if file not in files:
            files[file] = open_tensors(folder / file)
        if name not in files[file]:
            raise CheckpointError(f"{folder / file} lacks {name}, which the index says it holds; the file is damaged")
        tensors[name] = files[file][name]
    return tensors


def open_overlay(path: Path) -> Tensors:
    """Tensors of a safetensors file, or of all in a folder. Raises ``WeightsError`` when there is none."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise WeightsError(f"the overlay {path} is no safetensors file and no folder with one; check the path")
    return {name: load for file in files for name, load in open_tensors(file).items()}
