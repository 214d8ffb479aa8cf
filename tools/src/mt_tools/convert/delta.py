"""Delta of a tuned folder to its base: the exclusive or of their bits, tensor by tensor, so that applying it is exact.

Rows that only the tuned tensor has (new tokens) are stored as they are, and so is a tensor without a counterpart. Where the
dtypes differ, the base counts as what it is in the tuned one's.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core.errors import WeightsError
from mt_core.weights import CONFIG, Loaders, check_folder, is_folder, open_folder, open_safetensors, read_json
from mt_core.weights.folder import WHOLE
from mt_tools.convert.folder import GENERATION_CONFIG, TOKENIZER_FILES
from mt_tools.convert.whole import PROCESSOR_FILES
from mt_tools.convert.writing import stage_folder, write_json, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

DELTA = "delta.json"
FORMAT = 1
_CARRIED = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, *PROCESSOR_FILES, "README.md")
_PIECE = 2**24
"""Bytes that are hashed at a time."""


def make(base: Path, tuned: Path, out: Path, *, shard_bytes: int) -> None:
    """Write the folder of a delta: integers, the SHA-256 of both sides, and what stands beside the tuned weights."""
    old, new = _open(base), _open(tuned)
    with stage_folder(out) as stage:
        _carry(tuned, stage)
        bits: Loaders = {name: partial(_bits, load, old.get(name)) for name, load in new.items()}
        write_tensors(stage, bits, shard_bytes=shard_bytes)
        types = {name: _word(load()) for name, load in new.items()}
        write_json(
            stage / DELTA, {"format": FORMAT, "base": content_hash(old), "tuned": content_hash(new), "dtypes": types}
        )


def apply(base: Path, delta: Path, out: Path, *, shard_bytes: int) -> None:
    """Write the tuned folder again, bit for bit. Raises ``WeightsError`` for another base, or a result of another hash."""
    about = _about(delta)
    old, bits = _open(base), open_folder(delta)
    if (found := content_hash(old)) != about["base"]:
        raise WeightsError(
            f"{delta} belongs to a base with SHA-256 {about['base'][:16]}…, and {base} has {found[:16]}…; give the weights"
            " that it was made from, in their dtype"
        )
    if odd := sorted(about["dtypes"].keys() ^ bits.keys()):
        raise WeightsError(f"{delta / DELTA} and the files beside it differ in {', '.join(odd)}; fetch the delta again")
    tuned: Loaders = {name: partial(_values, load, old.get(name), about["dtypes"][name]) for name, load in bits.items()}
    with stage_folder(out) as stage:
        _carry(delta, stage)
        write_tensors(stage, tuned, shard_bytes=shard_bytes, scaled=True)
        if content_hash(open_folder(stage)) != about["tuned"]:
            raise WeightsError(f"the result is not what {delta} was made of; its files are damaged, fetch them again")


def content_hash(loaders: Loaders) -> str:
    """SHA-256 of the tensors by name: dtype, shape and bytes, however they are spread over files."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(loaders):
        tensor = loaders[name]().detach().contiguous()
        digest.update(f"{name}\n{_word(tensor)} {list(tensor.shape)}\n".encode())
        flat = tensor.reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), _PIECE):
            digest.update(flat[start : start + _PIECE].numpy().data)
    return digest.hexdigest()


def _carry(folder: Path, stage: Path) -> None:
    for name in (*_CARRIED, *_objective_files(folder)):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, stage / name)


def _objective_files(folder: Path) -> Iterator[str]:
    """Yield the files beside the weights with what an objective has trained: each is named as the module whose tensors are in it."""
    for file in sorted(folder.glob("*.safetensors")):
        if file.name not in WHOLE and all(name.startswith(f"{file.stem}.") for name in open_safetensors(file)):
            yield file.name


def _open(folder: Path) -> Loaders:
    if not is_folder(folder):
        raise WeightsError(
            f"{folder} is no Hugging Face folder of weights ({CONFIG} and safetensors or .bin); write one with"
            f" mt-convert {folder} FOLDER first"
        )
    check_folder(folder)
    return open_folder(folder)


def _about(delta: Path) -> Mapping[str, Any]:
    if not (delta / DELTA).is_file():
        raise WeightsError(
            f"{delta} has no {DELTA}, so it is no delta; make one with mt-convert delta make BASE TUNED OUT"
        )
    about = read_json(delta / DELTA)
    if about.get("format") != FORMAT:
        raise WeightsError(f"{delta} has format {about.get('format')!r}, and this version reads {FORMAT}")
    if not all(isinstance(about.get(key), kind) for key, kind in (("base", str), ("tuned", str), ("dtypes", dict))):
        raise WeightsError(f"{delta / DELTA} lacks the hashes or the dtypes; fetch the delta again")
    return about


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bits(load: Callable[[], Tensor], load_base: Callable[[], Tensor] | None) -> Tensor:
    tuned = load()
    return _as_integers(tuned) ^ _counterpart(tuned.dtype, tuned.shape, load_base)


def _values(load: Callable[[], Tensor], load_base: Callable[[], Tensor] | None, word: str) -> Tensor:
    import torch

    bits, dtype = load(), getattr(torch, word, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != bits.dtype.itemsize:
        raise WeightsError(f"{DELTA} says {word!r} of a tensor of {bits.dtype}; fetch the delta again")
    return (bits ^ _counterpart(dtype, bits.shape, load_base)).view(dtype)


def _counterpart(dtype: Any, shape: Any, load_base: Callable[[], Tensor] | None) -> Tensor:
    """The base's bits in the tuned tensor's dtype and shape, with zeros where it has nothing."""
    import torch

    zeros = torch.zeros(shape, dtype=dtype)
    base = None if load_base is None else load_base()
    fits = base is not None and base.dim() == len(shape) and base.shape[1:] == shape[1:]
    if base is not None and fits:
        rows = ... if not shape else slice(min(base.shape[0], shape[0]))
        zeros[rows] = base[rows].to(dtype)
    return _as_integers(zeros)


def _as_integers(tensor: Tensor) -> Tensor:
    import torch

    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(widths[tensor.dtype.itemsize])
