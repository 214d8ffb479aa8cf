"""Writing a folder of weights: a tensor at a time, into files of bounded size, and whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mt_core.errors import WeightsError
from mt_core.files.writing import sync
from mt_core.weights.files import Loaders
from mt_core.weights.folder import CONFIG, INDEXES, WHOLE
from mt_tools.convert.disk import check_room, tell_full_disk
from mt_train.config.digits import parse_whole_number

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SHARD_BYTES = 5 * 10**9
"""Largest file that is written, where nothing else is asked for; one tensor that is larger has a file of its own."""

DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Our word for a floating-point type → torch's."""

_CODES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's word for a type → that of safetensors (https://huggingface.co/docs/safetensors#format)."""
_SCALED = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}
"""Types whose values mean nothing without the scales in other tensors: only copied, bit for bit."""

_PIECE = 2**18
"""Elements that are converted and written at a time: what a conversion holds in memory."""


@dataclass(frozen=True)
class _Entry:
    """A tensor as it will be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int


def save_folder(folder: Path, loaders: Loaders, config: Mapping[str, Any]) -> None:
    """Write a folder with ``config.json`` and all tensors, each in its dtype. Raises ``WeightsError`` as ``stage_folder``."""
    with stage_folder(folder) as stage:
        dtype = write_tensors(stage, loaders)
        write_json(stage / CONFIG, {**config, "torch_dtype": dtype})


@contextmanager
def stage_folder(folder: Path) -> Iterator[Path]:
    """Create a folder to write into; it is named ``….partial`` until the block ends, and then renamed.

    Raises ``WeightsError`` when the folder has files (nothing is overwritten), when another export was cut off there, and for a full disk.
    """
    check_free(folder)
    stage = folder.with_name(f"{folder.name}.partial")
    try:
        stage.mkdir(parents=True)
    except FileExistsError as error:
        raise WeightsError(
            f"{stage} exists, from a writer that was cut off; remove it, or choose another folder"
        ) from error
    except OSError as error:
        raise WeightsError(f"{stage} cannot be made: {error.strerror}; choose another folder") from error
    try:
        with tell_full_disk(stage):
            yield stage
            for path in (*stage.iterdir(), stage):
                sync(path)
        os.replace(stage, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(stage)
        raise


def check_free(folder: Path) -> None:
    """Raise ``WeightsError`` when there is something at this path that a writer would have to overwrite."""
    if os.path.lexists(folder) and (not folder.is_dir() or folder.is_symlink() or any(folder.iterdir())):
        raise WeightsError(f"{folder} is not empty; choose another folder, nothing is overwritten")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON as Hugging Face does."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(
    stage: Path,
    loaders: Loaders,
    *,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    unconverted: Container[str] = (),
    scaled: bool = False,
) -> str:
    """Write safetensors, with an index where one file is not enough; returns torch's word for the dtype of most bytes.

    ``dtype`` (fp32, bf16, fp16) is that of all floating-point tensors; ``None``, and for some ``unconverted``, keeps each one's
    own. ``shapes`` are what some of them must have. Tensors of 8-bit floating point are written if they may be ``scaled``. A tensor
    is loaded twice, once for its shape and dtype; where that maps a file, no more than a piece of it is ever in memory of our own.
    Raises ``WeightsError`` for tensors of another shape than ``shapes`` says, for a value too large for ``dtype``, and for a full disk.
    """
    names, shapes = sorted(loaders, key=_in_order), shapes or {}
    entries = [_entry(name, loaders[name], None if name in unconverted else dtype, scaled=scaled) for name in names]
    if wrong := [each for each in entries if each.shape != shapes.get(each.name, each.shape)]:
        listed = [f"{each.name} is {each.shape} and the config says {shapes[each.name]}" for each in wrong]
        raise WeightsError(f"{len(wrong)} tensors have another shape:\n  " + "\n  ".join(listed))
    shards = list(_shards(entries, shard_bytes))
    files = [WHOLE[0]]
    if len(shards) > 1:
        files = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    total = sum(entry.size for entry in entries)
    check_room(stage, total)
    with tell_full_disk(stage, total):
        for file, shard in zip(files, shards, strict=True):
            _write(stage / file, shard, loaders)
    if len(shards) > 1:
        where = {entry.name: file for file, shard in zip(files, shards, strict=True) for entry in shard}
        write_json(stage / INDEXES[0], {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})
    return _commonest_dtype(entries)


def write_beside(stage: Path, files: Mapping[str, Loaders]) -> None:
    """Write further files of tensors, each in its own dtype. Raises ``WeightsError`` for one whose name another file has."""
    for file, loaders in files.items():
        if (stage / file).exists():
            raise WeightsError(
                f"a module of the objective would be written into {file}, which the folder has; rename the module"
            )
        _write(stage / file, [_entry(name, loaders[name], None) for name in sorted(loaders)], loaders)


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort by name, layer 2 before layer 10: equal tensors give equal files, whatever they came from."""
    return [(-1, part) if (number := parse_whole_number(part)) is None else (number, "") for part in name.split(".")]


def _entry(name: str, load: Callable[[], Tensor], dtype: str | None, *, scaled: bool = False) -> _Entry:
    import torch

    tensor = load()
    kept = dtype is None or not tensor.is_floating_point()
    written = tensor.dtype if kept else getattr(torch, DTYPES[str(dtype)])
    if _word(tensor.dtype) not in (_CODES | _SCALED if scaled else _CODES):
        raise WeightsError(f"{name} is of {tensor.dtype}, which is not written here; known are {', '.join(_CODES)}")
    return _Entry(name, written, tuple(tensor.shape), tensor.numel() * written.itemsize)


def _shards(entries: list[_Entry], most: int) -> Iterator[list[_Entry]]:
    shard: list[_Entry] = []
    for entry in entries:
        if shard and sum(each.size for each in shard) + entry.size > most:
            yield shard
            shard = []
        shard.append(entry)
    yield shard


def _commonest_dtype(entries: list[_Entry]) -> str:
    sizes: dict[str, int] = {}
    for entry in entries:
        sizes[_word(entry.dtype)] = sizes.get(_word(entry.dtype), 0) + entry.size
    return max(sizes, key=lambda word: sizes[word], default="float32")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _write(path: Path, shard: list[_Entry], loaders: Loaders) -> None:
    """One safetensors file: the length of the header, the header, the values one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in shard:
        start, end = end, end + entry.size
        code = (_CODES | _SCALED)[_word(entry.dtype)]
        header[entry.name] = {"dtype": code, "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in shard:
            _write_values(file, entry, loaders[entry.name]())


def _write_values(file: BinaryIO, entry: _Entry, tensor: Tensor) -> None:
    import torch

    if tuple(tensor.shape) != entry.shape:
        raise WeightsError(f"{entry.name} changed its shape while it was written; do not change the source meanwhile")
    flat = tensor.detach().reshape(-1)
    for start in range(0, len(flat), _PIECE):
        piece = flat[start : start + _PIECE]
        values = piece.to("cpu", entry.dtype)
        if values.dtype != piece.dtype and bool((values.isinf() & piece.isfinite().to(values.device)).any()):
            raise WeightsError(f"{entry.name} has values beyond {_word(entry.dtype)}; choose bf16 or fp32")
        file.write(values.contiguous().view(torch.uint8).numpy().data)
