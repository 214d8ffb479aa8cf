"""Files of weights: only regular ones inside their folder, read without executing anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError

from .shapes import EMBEDDING, HEAD

if TYPE_CHECKING:
    from torch import Tensor

Loaders = dict[str, "Callable[[], Tensor]"]
"""Tensor name → a function that loads this one tensor."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ``WeightsError`` when the file is missing, damaged or something else."""
    try:
        content = json.loads(contained(path.parent, path.name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {error}; the file is missing or damaged, fetch it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}; a JSON object is expected, fetch the file again")
    return content


def contained(folder: Path, name: str) -> Path:
    """The regular file ``name`` in ``folder``. Raises ``WeightsError`` for a path or link that leads elsewhere."""
    if Path(name).name != name or "\0" in name:
        raise WeightsError(
            f"{folder} names the file {name!r}, which is outside the folder; the index cannot be trusted"
        )
    path, inside = folder / name, folder.resolve()
    real = path.resolve()
    if real.parent != inside and not (_is_snapshot(inside) and real.parent == inside.parent.parent / "blobs"):
        raise WeightsError(f"{path} is a link to {real}, outside its folder; copy the file there instead")
    if not real.is_file():
        raise WeightsError(f"{path} is missing or no regular file; fetch the weights again")
    return real


def _is_snapshot(folder: Path) -> bool:
    """Whether this is a revision in Hugging Face's cache: links into ``blobs``, two levels up, which alone are allowed.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    return folder.parent.name == "snapshots"


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


def pickled_loaders(path: Path) -> Loaders:
    """One loader a tensor of a ``.bin`` or ``.pth`` file."""

    def loader(tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: tensor

    return {name: loader(tensor) for name, tensor in _pickled(path).items()}


def _pickled(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a pickle, mapped into memory where its form allows it; anything but tensors in it is refused."""
    import pickle
    import zipfile

    import torch

    try:
        mapped = zipfile.is_zipfile(path)  # what torch has written since 1.6; only these can be mapped
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
        # torch's own message goes on with how to switch its safety off
        first = next(iter(str(error).splitlines()), type(error).__name__).partition(". In PyTorch")[0]
        raise WeightsError(
            f"cannot read {path}: {first}; only plain tensors are loaded, nothing is executed. Fetch the file again"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds more than named tensors; it is no file of weights")
    return content


def without_tied_head(loaders: Loaders, path: Path) -> Loaders:
    """Without the head that some files repeat though it is tied; loading the embedding checks that it is a repetition."""
    if HEAD not in loaders or EMBEDDING not in loaders:
        return loaders
    embedding, head = loaders[EMBEDDING], loaders[HEAD]

    def load() -> Tensor:
        import torch

        tensor = embedding()
        if not torch.equal(tensor, head()):
            raise WeightsError(
                f"{path} ties {HEAD} to {EMBEDDING}, but holds different values for them; "
                "set --model.tie-embeddings false to train both"
            )
        return tensor

    return {name: loader for name, loader in loaders.items() if name != HEAD} | {EMBEDDING: load}
