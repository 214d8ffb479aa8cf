"""Base of streams over files, one after another: where the last row is, and how a resumed run goes on there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mt_core import DataError


class FileStream:
    """Files that are read in their order. The state has the number of a file (``file``), its ``name``, and a place in it."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._state: dict[str, Any] = {}
        self._start: dict[str, Any] = {}

    def take_start(self) -> dict[str, Any]:
        """Return where to go on; the next call, which begins an epoch, gets the beginning."""
        start, self._start = self._start, {}
        return start

    def state_dict(self) -> dict[str, Any]:
        """Return where the last row is."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the row of a state. Raises ``DataError`` where the files are others."""
        number, name = state["file"], state["name"]
        if number >= len(self._files) or self._files[number].name != name:
            raise DataError(
                f"the run stopped in {name}, file {number + 1} of its stream, and dataset.path means other files now ({len(self._files)})."
                " Put the files back."
            )
        self._start = self._state = dict(state)
