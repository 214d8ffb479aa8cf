"""The tensors of a folder, in the names and shapes of its family's files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mt_core.errors import ComponentError, WeightsError
from mt_core.weights import Loaders
from mt_tools.convert.source import Source, SourceTensors

if TYPE_CHECKING:
    from torch import Tensor


class FileTensors:
    """The tensors that a family's format makes of its model's (``WeightsFormat.written``); the model's own where it says nothing.

    ``shapes`` are those of tensors that are the model's own, ``unconverted`` the names of those that no ``--dtype`` rounds: what the
    model has ``kept``, where the format passes its loader on.
    """

    def __init__(self, source: Source, own: Loaders, tensors: SourceTensors) -> None:
        self._source = source
        self._unread: set[str] = set()
        self.shapes = {name: tensors.shapes[name] for name in own}
        self.loaders, kept = own, {own[name] for name in tensors.kept if name in own}
        if source.writer.written is not None:
            self._unread = set(own)
            checked = {name: partial(self._load, name, load, self.shapes[name]) for name, load in own.items()}
            self.shapes, kept = {}, {checked[name] for name in tensors.kept if name in own}
            self.loaders = dict(source.writer.written(source.parts.config.model.options, checked))
        self.unconverted = {name for name, load in self.loaders.items() if load in kept}

    def _load(self, name: str, load: Callable[[], Tensor], shape: tuple[int, ...]) -> Tensor:
        self._unread.discard(name)
        tensor = load()
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{name} has another shape: it is {tuple(tensor.shape)} and the config says {shape}")
        return tensor

    def check_complete(self) -> None:
        """Raise ``ComponentError`` where all is written, and some of the model's tensors were not asked for."""
        if self._unread:
            name = self._source.parts.config.model.name
            raise ComponentError(
                f"written() of the family {name} leaves {', '.join(sorted(self._unread)[:4])} out of the files"
                f" ({len(self._unread)} tensors); its plugin must write all that its model has"
            )
