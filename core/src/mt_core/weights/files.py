"""Files of weights: only regular ones inside their folder, read without executing anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mt_core.errors import WeightsError
from mt_core.files.strict_json import parse_json, unique_object

if TYPE_CHECKING:
    from torch import Tensor

Loaders = dict[str, "Callable[[], Tensor]"]
"""Tensor name → a function that loads this tensor.

One that can load rows of the first dimension alone has ``shape`` and ``rows(start, end)`` (``load_rows``), so that nobody holds a large
tensor of which a part is wanted."""

RowInit = Literal["mean", "subtokens", "normal"]
"""First values of the row of a new token: as the mean of the old rows; as that of the tokens which its text was read as before; or as a
draw around the mean, with the standard deviation of each channel."""

_LONGEST_HEADER = 100 * 10**6
"""Bytes; the safetensors library refuses a longer one, too."""


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ``WeightsError`` if the file is missing, damaged or something else."""
    try:
        text = contained_file(path.parent, path.name).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=unique_object)  # of a name that stands twice, one would be lost
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {error}; the file is missing or damaged, fetch it again") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{path} holds a {type(content).__name__}; a JSON object is expected, fetch the file again")
    return content


def contained_file(folder: Path, name: str) -> Path:
    """Return the regular file ``name`` in ``folder``. Raises ``WeightsError`` for a path or link that leads outside."""
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
    """Return whether this is a revision in Hugging Face's cache: links into ``blobs``, two levels up, which alone are allowed.

    Layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    return folder.parent.name == "snapshots"


def is_safetensors(path: Path) -> bool:
    """Tell by the ending or the first bytes, since a file in Hugging Face's cache has a hash for a name.

    The format begins with the length of its header and a brace (https://huggingface.co/docs/safetensors#format).
    """
    with path.open("rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


def check_file(path: Path) -> set[str]:
    """Return the tensor names in a file's header; an empty result for a pickle, whose names only torch can read.

    Raises ``WeightsError`` for a file that is shorter or longer than its header says. Needs no torch.
    """
    if is_safetensors(path):
        return _check_header(path)
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"  # what torch has written since 1.6
    import zipfile

    if is_archive and not zipfile.is_zipfile(path):
        raise WeightsError(f"{path} is cut short: the directory at its end is missing; fetch the file again")
    return set()


def _check_header(path: Path) -> set[str]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if size >= 8 and length <= min(size, _LONGEST_HEADER) else b""
    try:
        header = parse_json(text.decode("utf-8"))
        ends = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
        wanted = 8 + length + max(ends.values(), default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError) as error:
        raise WeightsError(
            f"{path} has no header of safetensors; it is cut short or damaged, fetch it again"
        ) from error
    if size != wanted:
        raise WeightsError(
            f"{path} has {size:,} bytes, and its header asks for {wanted:,}; it is cut short or damaged, fetch it again"
        )
    return set(ends)


def open_safetensors(path: Path) -> Loaders:
    """Return a loader for each tensor of a safetensors file; tensors are memory-mapped, not copied."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"cannot read {path}: {error}; fetch the file again") from error
    return {name: _TensorOfFile(path, name) for name in names}


@dataclass(frozen=True)
class _TensorOfFile:
    """Loads a tensor of a safetensors file, or some rows of it."""

    path: Path
    name: str

    def __call__(self) -> Tensor:
        from safetensors import safe_open

        with safe_open(str(self.path), framework="pt") as file:
            return file.get_tensor(self.name)  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, which its file's header says."""
        from safetensors import safe_open

        with safe_open(str(self.path), framework="pt") as file:
            return tuple(file.get_slice(self.name).get_shape())

    def rows(self, start: int, end: int) -> Tensor:
        """Load the rows from ``start`` up to ``end`` of the first dimension."""
        from safetensors import safe_open

        with safe_open(str(self.path), framework="pt") as file:
            return file.get_slice(self.name)[start:end]  # type: ignore[no-any-return]


def load_rows(load: Callable[[], Tensor], start: int, end: int) -> Tensor:
    """Load rows ``start`` to ``end`` of the first dimension, without the other rows if the loader can."""
    rows = getattr(load, "rows", None)
    return load()[start:end] if rows is None else rows(start, end)


def open_pickle(path: Path, *, within: str | None = None) -> Loaders:
    """Return a loader for each tensor of a ``.bin`` or ``.pth`` file; ``within`` is the key of the tensors if the file has more."""

    def loader(tensor: Tensor) -> Callable[[], Tensor]:
        return lambda: tensor

    return {name: loader(tensor) for name, tensor in _read_pickle(path, within).items()}


def _read_pickle(path: Path, within: str | None) -> Mapping[str, Tensor]:
    """The tensors of a pickle, mapped into memory where its form allows it; anything but tensors in it is refused."""
    import pickle
    import zipfile

    import torch

    try:
        mapped = zipfile.is_zipfile(path)  # only these can be mapped
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
        # torch's own message goes on with how to switch its safety off
        first = next(iter(str(error).splitlines()), type(error).__name__).partition(". In PyTorch")[0]
        raise WeightsError(
            f"cannot read {path}: {first}; only plain tensors are loaded, nothing is executed. Fetch the file again"
        ) from error
    if within is not None and isinstance(content, dict):
        content = content.get(within)
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds more than named tensors; it is no file of weights")
    return content
