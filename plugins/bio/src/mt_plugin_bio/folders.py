"""Folders of published encoders, read without executing anything: safetensors only. Torch is not imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, read_json

if TYPE_CHECKING:
    from .sequences import SequenceConfig

CONVERT = (
    'convert it once, where you trust it: python -c "import torch, safetensors.torch as s;'
    " s.save_file({k: v.clone().contiguous() for k, v in torch.load('{file}', weights_only=True).items()}, 'model.safetensors')\""
)


def read_folder(path: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a folder whose weights are safetensors. Raises ``WeightsError`` for a pickle, and for damaged files."""
    folder = config_file(path).parent
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
    return read_json(config_file(path))


def is_published(path: Path, test: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether a folder has a ``config.json`` of which ``test`` is true, whatever its weights are stored in."""
    file = config_file(path)
    has_weights = is_folder(path) or any(file.parent.glob("*.ckpt"))
    return has_weights and file.is_file() and test(read_json(file))


def require_values(config: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]], path: Path) -> None:
    """Raise ``WeightsError`` for keys with values that are not built here. A key that is not there has the first value."""
    for key, allowed in wanted.items():
        if (got := config.get(key, allowed[0])) not in allowed:
            raise WeightsError(
                f"{path} has {key}={got!r}; this encoder is built for {' or '.join(map(repr, allowed))} only, choose another folder"
            )


def config_file(path: Path) -> Path:
    """Return where the ``config.json`` of a folder, or of a file of weights, lies."""
    return (path.parent if path.is_file() else path) / CONFIG


def require_numbers(config: Mapping[str, Any], keys: Mapping[str, str], path: Path) -> dict[str, int]:
    """Return our option → the number that ``keys`` has for it. Raises ``WeightsError`` for one that is no whole number above 0."""
    for key in keys:
        if key not in config:
            raise WeightsError(f"{path} lacks {key!r}; fetch it again")
        if type(config[key]) is not int or config[key] < 1:
            raise WeightsError(
                f"{path} has {key}={config[key]!r}, and it must be a whole number above 0; fetch it again"
            )
    return {option: config[key] for key, option in keys.items()}


def block_tensors(
    path: Path, config: SequenceConfig, *, prefix: str, left_out: re.Pattern[str], last_norm: str | None = None
) -> Loaders:
    """Return one loader for each tensor of a BERT that is built, under its name without ``prefix``.

    Blocks above ``layer`` are left out, and ``last_norm`` (part of a name) with them.
    """

    def rename(name: str) -> str | None:
        block = re.search(r"encoder\.layer\.(\d+)\.", name)
        if left_out.search(name) or (block is not None and int(block[1]) >= config.blocks):
            return None
        if last_norm is not None and last_norm in name and not config.has_all_blocks:
            return None
        return rename_norm(name.removeprefix(prefix))

    return renamed_tensors(path, rename)


def renamed_tensors(path: Path, rename: Callable[[str], str | None]) -> Loaders:
    """Return one loader for each tensor, under the name that ``rename`` gives it; ``None`` leaves it out."""
    read_folder(path)
    loaders = open_folder(path)
    return {new: load for name, load in loaders.items() if (new := rename(name)) is not None}


def rename_norm(name: str) -> str:
    """Return today's name of a norm's parameter: old files, and those that transformers 5 writes, have ``gamma`` and ``beta``."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
