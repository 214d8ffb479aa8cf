"""Files of weights: only regular ones inside their folder, read without executing anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

Loaders = dict[str, "Callable[[], Tensor]"]
"""Tensor name → a function that loads this one tensor."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``WeightsError`` when the file is missing, damaged or something else."""
    try:
        content = json.loads(contained(path.parent, path.name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {error}; the file is missing or damaged") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}; a JSON object is expected")
    return content


def contained(folder: Path, name: str) -> Path:
    """The regular file ``name`` in ``folder``. Raises ``WeightsError`` for a path or link that leads elsewhere."""
    path = folder / name
    if Path(name).name != name:
        raise WeightsError(
            f"{folder} names the file {name!r}, which is outside the folder; the index cannot be trusted"
        )
    # Hugging Face's cache is links into a store of blobs beside the snapshot: one level that we know and allow.
    store = folder.resolve().parent.parent / "blobs"
    real = path.resolve()
    if real.parent not in (folder.resolve(), store):
        raise WeightsError(f"{path} is a link to {real}, outside its folder; copy the file there instead")
    if not real.is_file():
        raise WeightsError(f"{path} is missing or no regular file; fetch the weights again")
    return real


def safetensors_loaders(path: Path) -> Loaders:
    """One loader a tensor of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"cannot read {path}: {error}; fetch the file again") from error

    def loader(name: str) -> Callable[[], Tensor]:
        def load() -> Tensor:
            with safe_open(str(path), framework="pt") as file:
                return file.get_tensor(name)  # type: ignore[no-any-return]

        return load

    return {name: loader(name) for name in names}


@cache
def pickled(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a ``.bin`` or ``.pth`` file, memory-mapped; anything but tensors in it is refused."""
    import pickle

    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise WeightsError(
            f"cannot read {path}: {first}; only plain tensors are loaded, nothing is executed"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds more than named tensors; it is no file of weights")
    return content


def pickled_loaders(path: Path) -> Loaders:
    """One loader a tensor of a ``.bin`` file."""
    return {name: lambda name=name: pickled(path)[name] for name in pickled(path)}  # type: ignore[misc]
