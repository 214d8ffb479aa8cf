"""Folders of published encoders, read without executing anything: safetensors only. Torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mt_core import WeightsError
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json

CONVERT = (
    'convert it once, where you trust it: python -c "import torch, safetensors.torch as s;'
    " s.save_file({k: v.clone().contiguous() for k, v in torch.load('{file}', weights_only=True).items()}, 'model.safetensors')\""
)


def read_folder(path: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a folder whose weights are safetensors. Raises ``WeightsError`` for a pickle, and for damaged files."""
    folder = path.parent if path.is_file() else path
    if not path.is_file() and not list(folder.glob("*.safetensors")):
        found = sorted(file.name for ending in ("*.bin", "*.ckpt", "*.pt") for file in folder.glob(ending))
        file = found[0] if found else "pytorch_model.bin"
        raise WeightsError(
            f"{folder} has {', '.join(found) or 'no weights'} and no .safetensors, and a pickle is not opened here; "
            + CONVERT.replace("{file}", file)
        )
    if path.is_file() and path.suffix != ".safetensors":
        raise WeightsError(f"{path} is a pickle, which is not opened here; " + CONVERT.replace("{file}", path.name))
    check_folder(path)
    return read_json(folder / CONFIG)


def is_published(path: Path, test: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether a folder has a ``config.json`` of which ``test`` is true, whatever its weights are stored in."""
    folder = path.parent if path.is_file() else path
    return (
        (is_folder(path) or any(folder.glob("*.ckpt")))
        and (folder / CONFIG).is_file()
        and test(read_json(folder / CONFIG))
    )


def require_values(config: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]], path: Path) -> None:
    """Raise ``WeightsError`` for keys with values that are not built here. A key that is not there has the first value."""
    for key, allowed in wanted.items():
        if (got := config.get(key, allowed[0])) not in allowed:
            raise WeightsError(
                f"{path} has {key}={got!r}; this encoder is built for {' or '.join(map(repr, allowed))} only, choose another folder"
            )


def renamed_tensors(path: Path, rename: Callable[[str], str | None]) -> Loaders:
    """One loader a tensor, under the name that ``rename`` gives it; ``None`` leaves it out."""
    read_folder(path)
    loaders = open_folder(path)
    return {new: load for name, load in loaders.items() if (new := rename(name)) is not None}


def rename_norm(name: str) -> str:
    """Return today's name of a norm's parameter: old files, and those that transformers 5 writes, have ``gamma`` and ``beta``."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
