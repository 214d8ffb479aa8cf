"""Tensors of an encoder in a folder that may hold more: those of the module that is built, by its names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core import WeightsError
from mt_core.weights import Loaders

if TYPE_CHECKING:
    from torch import nn


def require_safetensors(path: Path) -> None:
    """Raise ``WeightsError`` for a folder whose weights are pickles alone."""
    folder = path.parent if path.is_file() else path
    if path.suffix == ".bin" or not any(folder.glob("*.safetensors")):
        raise WeightsError(
            f"{path} has no safetensors, and pickles are not read; save its weights again (save_pretrained)"
        )


def tensors_below(found: Loaders, path: Path, prefixes: Sequence[str], build: Callable[[], nn.Module]) -> Loaders:
    """Return the loader of each parameter that ``build()`` has. A folder has them behind one of ``prefixes``.

    Raises ``WeightsError`` for parameters that the folder has not; what it has beside them belongs to no encoder, or to layers that are
    not built.
    """
    import torch

    with torch.device("meta"):
        names = [name for name, _ in build().named_parameters()]
    prefix = max(prefixes, key=lambda each: sum(f"{each}{name}" in found for name in names))
    if missing := [name for name in names if f"{prefix}{name}" not in found]:
        raise WeightsError(
            f"{path} lacks {len(missing)} of the encoder's {len(names)} tensors, {prefix}{missing[0]} among them; take the folder of an"
            " encoder of this kind"
        )
    return {name: found[f"{prefix}{name}"] for name in names}
