"""Tensors and numbers on disk: safetensors and JSON only, so that nothing executes when they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mt_core.errors import CheckpointError, WeightsError
from mt_core.files.strict_json import parse_json
from mt_train.checkpoint.files import refuse_special

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 2 * 2**30
"""Largest size of one file of weights: what is held in memory at a time while a model is written."""

INDEX = "index.json"
_SHARD = re.compile(r"model-[0-9]{5}\.safetensors")
Tensors = Mapping[str, "Callable[[], Tensor]"]
"""Name → a function that loads this one tensor."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the mode that the umask gives: the library writes another file, of mode 0600.

    Raises ``CheckpointError`` when something other than a regular file is in the way: the library would replace it.
    """
    from safetensors.torch import save_file  # torch loads here: finding and listing checkpoints needs none

    refuse_special(path)
    path.touch()
    mode = path.stat().st_mode & 0o777
    save_file(dict(tensors), str(path))
    path.chmod(mode)


def open_tensors(path: Path) -> Tensors:
    """The tensors of one file, each loaded when asked for. Raises ``CheckpointError`` when the file is damaged."""
    refuse_special(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path}: {error}; the file is missing or damaged") from error
    return {name: _TensorOfFile(path, name) for name in names}


@dataclass(frozen=True)
class _TensorOfFile:
    """Loads a tensor of a file, or some rows of it. Raises ``CheckpointError`` when the file is damaged."""

    path: Path
    name: str

    def __call__(self) -> Tensor:
        return self._read(lambda file: file.get_tensor(self.name))  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, which its file's header says."""
        return tuple(self._read(lambda file: file.get_slice(self.name).get_shape()))

    def rows(self, start: int, end: int) -> Tensor:
        """Load the rows from ``start`` up to ``end`` of the first dimension."""
        return self._read(lambda file: file.get_slice(self.name)[start:end])  # type: ignore[no-any-return]

    def _read(self, take: Callable[[Any], Any]) -> Any:
        try:
            with safe_open(str(self.path), framework="pt") as file:
                return take(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"cannot read {self.name} of {self.path}: {error}; the file is missing or damaged"
            ) from error


def write_json(path: Path, content: Any) -> None:
    """Write JSON whose floats read back bit for bit. Raises ``CheckpointError`` as ``json_text`` does."""
    refuse_special(path)
    path.write_text(json_text(path, content), encoding="utf-8")


def json_text(path: Path, content: Any) -> str:
    """Return the text that ``write_json`` writes.

    Raises ``CheckpointError`` for what would not read back as it is: NaN, infinities, keys that are no text.
    """
    try:
        _refuse_keys(content)
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot write {path}: {error}; JSON holds finite numbers, text, lists and maps"
        ) from error


def _refuse_keys(content: Any) -> None:
    """``json`` would write the key 1 as "1" without a word."""
    if isinstance(content, Mapping):
        if odd := [key for key in content if not isinstance(key, str)]:
            raise TypeError(f"the key {odd[0]!r} is not text")
        content = list(content.values())
    if isinstance(content, list | tuple):
        for item in content:
            _refuse_keys(item)


def read_json(path: Path) -> Any:
    """Read JSON. Raises ``CheckpointError`` when the file is missing or damaged, or says NaN or one key twice."""
    return read_json_text(path)[1]


def read_json_text(path: Path) -> tuple[str, Any]:
    """The text of a JSON file, and what it says; raises as ``read_json``."""
    refuse_special(path)
    try:
        text = path.read_text(encoding="utf-8")
        return text, parse_json(text)
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
        """Take one tensor, which must not change until ``close``: it is not copied.

        Raises ``CheckpointError`` for a name given twice, and for a tensor without elements: ZeRO 3 leaves one where a
        weight was not gathered.
        """
        if name in self._index or name in self._pending:
            raise CheckpointError(f"{name} is written twice to {self.folder}; a name stands for one tensor")
        if tensor.numel() == 0:
            raise CheckpointError(
                f"{name} is empty (shape {tuple(tensor.shape)}): it was not gathered before it was saved"
            )
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._bytes + size > self.shard_bytes:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._bytes += size

    def close(self) -> list[Path]:
        """Write what is left, and the index; returns all files."""
        self._flush()
        write_json(self.folder / INDEX, self._index)
        return [self.folder / name for name in (*dict.fromkeys(self._index.values()), INDEX)]

    def _flush(self) -> None:
        if not self._pending:
            return
        self._files += 1
        file = f"model-{self._files:05d}.safetensors"
        write_tensors(self.folder / file, self._pending)
        self._index.update(dict.fromkeys(self._pending, file))
        self._pending, self._bytes = {}, 0


def open_model(folder: Path) -> Tensors:
    """The weights that ``ModelWriter`` wrote, by name; a tensor is read when its function is called.

    Raises ``CheckpointError`` when the index and the files beside it do not agree, or a name leads elsewhere.
    """
    index = read_json(folder / INDEX)
    if not isinstance(index, dict):
        raise CheckpointError(f"{folder / INDEX} is no index of tensors; it is damaged or not ours")
    files: dict[str, Tensors] = {}
    for file in dict.fromkeys(index.values()):
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise CheckpointError(
                f"{folder / INDEX} names {file!r}, which is outside its folder or not model-NNNNN.safetensors; the index"
                " is not ours"
            )
        files[file] = open_tensors(folder / file)
    for name, file in index.items():
        if name not in files[file]:
            raise CheckpointError(f"{folder / file} lacks {name}, which the index says it holds; the file is damaged")
    for file, tensors in files.items():
        if extra := sorted(name for name in tensors if index.get(name) != file):
            raise CheckpointError(f"{folder / file} holds {', '.join(extra)}, which the index does not place there")
    return {name: files[file][name] for name, file in index.items()}


def open_overlay(path: Path) -> Tensors:
    """Tensors of a safetensors file, or of all in a folder. Raises ``WeightsError`` when there is none."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise WeightsError(f"the overlay {path} is no safetensors file and no folder with one; check the path")
    return {name: load for file in files for name, load in open_tensors(file).items()}
