"""Folders of weights for the server: written a tensor at a time into files of bounded size, and there as a whole or not at all."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mt_core.files import make_folder, replace_file

from .errors import SamplerError

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 2**30
"""Largest file, and what is held in memory at a time; one tensor that is larger has a file of its own."""
INDEX = "model.safetensors.index.json"
"""Tensor → file, as Hugging Face writes it."""

_OWN = re.compile(r"(\.partial-)?weights-[0-9]{8}")
_FILES = re.compile(r"model-[0-9]{5}\.safetensors|(\.tmp-)?model\.safetensors\.index\.json")


class WeightsFolder:
    """Weights of one version after the other, each in a folder of its own. Others stay as they are."""

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._shard_bytes = folder.expanduser().absolute(), shard_bytes
        self._name = ""
        self._begin("")

    def begin(self, version: int) -> None:
        """Make room for the weights of a version. Raises ``SamplerError`` where the folder cannot be written."""
        self._begin(f"weights-{version % 10**8:08d}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in (self._name, self._partial.name):
                _remove(self._folder / name)
            make_folder(self._partial)
        except OSError as error:
            raise self._failure(error) from error

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor; it is copied."""
        size = tensor.numel() * tensor.element_size()
        if self._waiting and self._bytes + size > self._shard_bytes:
            self._write()
        self._waiting[name] = tensor.detach().to("cpu", copy=True).contiguous()
        self._bytes += size

    def finish(self) -> str:
        """Write what is left and give the folder its name; returns that. Folders of versions before are removed."""
        self._write()
        content = {"metadata": {"total_size": self._total}, "weight_map": self._places}
        try:
            with replace_file(self._partial / INDEX) as file:
                file.write(json.dumps(content, indent=2).encode())
            os.replace(self._partial, self._folder / self._name)
            for path in sorted(self._folder.iterdir()):
                if _OWN.fullmatch(path.name) and path.name != self._name:
                    _remove(path)
        except OSError as error:
            raise self._failure(error) from error
        return self._name

    @property
    def _partial(self) -> Path:
        return self._folder / f".partial-{self._name}"

    def _begin(self, name: str) -> None:
        self._name, self._bytes, self._total = name, 0, 0
        self._waiting: dict[str, Tensor] = {}
        self._places: dict[str, str] = {}

    def _write(self) -> None:
        """Write what waits into the next file."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if not self._waiting:
            return
        file = f"model-{len(set(self._places.values())) + 1:05d}.safetensors"
        try:
            save_file(self._waiting, str(self._partial / file), metadata={"format": "pt"})
            os.chmod(self._partial / file, 0o644)  # the library writes 0600, and the server may be another user
        except (OSError, SafetensorError) as error:
            raise self._failure(error) from error
        self._places.update(dict.fromkeys(self._waiting, file))
        self._total += self._bytes
        self._waiting, self._bytes = {}, 0

    def _failure(self, error: Exception) -> SamplerError:
        return SamplerError(
            f"weights for the server cannot be written to {self._folder}: {type(error).__name__}: {error}. Make room there, or choose"
            " another folder (--sampler.folder)"
        )


def _remove(folder: Path) -> None:
    """Remove a folder of ours with its files. Raises ``OSError`` where there is something else in it."""
    if not os.path.lexists(folder):
        return
    for path in sorted(folder.iterdir()):
        if not _FILES.fullmatch(path.name):
            raise OSError(f"{path} was not written by this sampler; move it away")
        path.unlink()
    folder.rmdir()
