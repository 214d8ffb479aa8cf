"""A Hugging Face folder: tensors in safetensors (or ``.bin``), whole or in shards, read without executing anything.

Only regular files inside the folder are opened, whatever an index says.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
WHOLE = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SHARD_BYTES = 4 * 10**9
"""Largest file that is written, and what is held in memory at a time."""

Loaders = dict[str, "Callable[[], Tensor]"]
"""Tensor name → a function that loads this one tensor."""


def matches(path: Path) -> bool:
    """Whether a folder has a config and weights, or a file of weights has a config beside it."""
    if path.is_file():
        return path.name.endswith((".safetensors", ".bin")) and (path.parent / CONFIG).is_file()
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (*WHOLE, *INDEXES))


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
    """The regular file ``name`` in ``folder``. Raises ``WeightsError`` for a path or link that leads elsewhere.

    Links of Hugging Face's cache, from ``snapshots/REVISION`` into ``blobs``, are the only ones that may
    (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
    """
    if Path(name).name != name or "\0" in name:
        raise WeightsError(
            f"{folder} names the file {name!r}, which is outside the folder; the index cannot be trusted"
        )
    inside, real = folder.resolve(), (folder / name).resolve()
    cached = inside.parent.name == "snapshots" and real.parent == inside.parent.parent / "blobs"
    if real.parent != inside and not cached:
        raise WeightsError(f"{folder / name} is a link to {real}, outside its folder; copy the file there instead")
    if not real.is_file():
        raise WeightsError(f"{folder / name} is missing or no regular file; fetch the weights again")
    return real


def open_folder(path: Path) -> Loaders:
    """Of a folder, or of one file; safetensors before pickles, an index before a whole file."""
    if path.is_file():
        return _open(contained(path.parent, path.name))
    for whole, index in zip(WHOLE, INDEXES, strict=True):
        if (path / index).is_file():
            return _sharded(path, index)
        if (path / whole).is_file():
            return _open(contained(path, whole))
    raise WeightsError(f"{path} has none of {', '.join((*WHOLE, *INDEXES))}; give a folder with weights")


def _sharded(path: Path, index: str) -> Loaders:
    where = read_json(path / index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise WeightsError(f"{path / index} has no weight_map of names to files; fetch it again")
    files = {name: _open(contained(path, name)) for name in sorted(set(where.values()))}
    if missing := sorted(name for name, file in where.items() if name not in files[file]):
        raise WeightsError(f"{path} lacks tensors that its index lists: {', '.join(missing)}; fetch the files again")
    return {name: files[file][name] for name, file in where.items()}


def _open(path: Path) -> Loaders:
    # A file in Hugging Face's cache has a hash for a name, so its first bytes tell: safetensors begins with the length
    # of its header and a brace (https://huggingface.co/docs/safetensors#format).
    with path.open("rb") as file:
        ours = path.suffix == ".safetensors" or file.read(9)[8:] == b"{"
    return _safetensors(path) if ours else _pickled(path)


def _safetensors(path: Path) -> Loaders:
    from safetensors import SafetensorError, safe_open

    def load(name: str) -> Tensor:
        with safe_open(str(path), framework="pt") as file:
            return file.get_tensor(name)  # type: ignore[no-any-return]

    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: partial(load, name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"cannot read {path}: {error}; fetch the file again") from error


def _pickled(path: Path) -> Loaders:
    """The tensors of a pickle; anything but tensors in it is refused."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
        # torch's own message goes on with how to switch its safety off
        first = next(iter(str(error).splitlines()), type(error).__name__).partition(". In PyTorch")[0]
        raise WeightsError(
            f"cannot read {path}: {first}; only plain tensors are loaded, nothing is executed. Fetch the file again"
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds more than named tensors; it is no file of weights")
    return {name: partial(_itself, tensor) for name, tensor in content.items()}


def _itself(tensor: Tensor) -> Tensor:
    return tensor


# ------------------------------------------------------------------------------------------------------------- writing


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to fill, which appears under its name when it is complete. Raises ``WeightsError`` where files are."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WeightsError(f"{folder} is not empty; choose another folder, nothing is overwritten")
    stage = folder.with_name(f"{folder.name}.partial")
    if stage.exists():
        raise WeightsError(f"{stage} exists, from an export that was cut off; remove it, or choose another folder")
    stage.mkdir(parents=True)
    try:
        yield stage
        os.replace(stage, folder)
    except BaseException:
        shutil.rmtree(stage)
        raise


def write_shards(tensors: Iterable[tuple[str, Tensor]], stage: Path) -> None:
    """Safetensors of at most ``SHARD_BYTES`` each, and an index where there are several."""
    shard: dict[str, Tensor] = {}
    shards: list[list[str]] = []
    size = total = 0
    for name, tensor in tensors:
        added = tensor.numel() * tensor.element_size()
        if shard and size + added > SHARD_BYTES:
            shards.append(_write(shard, stage, len(shards)))
            shard, size = {}, 0
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()  # a view would drag its whole storage along
        size, total = size + added, total + added
    shards.append(_write(shard, stage, len(shards)))
    if len(shards) == 1:
        (stage / "part-0").rename(stage / WHOLE[0])
        return
    files = [f"model-{part + 1:05d}-of-{len(shards):05d}.safetensors" for part in range(len(shards))]
    for part, file in enumerate(files):
        (stage / f"part-{part}").rename(stage / file)
    where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    write_json(stage / INDEXES[0], {"metadata": {"total_size": total}, "weight_map": where})


def _write(shard: Mapping[str, Tensor], stage: Path, number: int) -> list[str]:
    """Write one file; returns the names in it."""
    from safetensors.torch import save_file

    path = stage / f"part-{number}"
    path.touch()
    mode = path.stat().st_mode & 0o777
    save_file(dict(shard), str(path), metadata={"format": "pt"})
    path.chmod(mode)  # safetensors writes 0600, which the group that shares a model cannot read
    return list(shard)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Indented, as Hugging Face's are."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
