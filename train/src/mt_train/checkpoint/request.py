"""A checkpoint that somebody asks for while a run trains: ``touch RUN/save``."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mt_core.tracking.logs import notice
from mt_train.checkpoint.file_names import SAVE_REQUEST

SAVE = 0.5
"""A wish to save and train on, of the one rank that looks for the file. A wish to stop is 1, so that both may travel in one sum."""


class SaveRequest:
    """The file ``save`` in the folder of a run; without a ``folder``, as on all ranks but one, there is none."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / SAVE_REQUEST

    def take(self) -> float:
        """Return ``SAVE`` where the file is there, and remove it; else 0."""
        if self._file is None or not os.path.lexists(self._file):  # every step: half a microsecond to two
            return 0.0
        try:
            self._file.unlink()
        except OSError as error:
            notice(
                f"warning: {self._file} asks for a checkpoint and cannot be removed ({error}), so that every step would save; this run"
                " does not look for it any more"
            )
            self._file = None
            return 0.0
        notice(f"notice: {self._file}: saving after this step, and training on")
        return SAVE

    def fulfil(self) -> None:
        """Remove the file after the last save of a run: one that came with the end would ask the resumed run for its first step."""
        if self._file is not None:
            with suppress(OSError):  # as in ``take``, which has told of it or will
                self._file.unlink(missing_ok=True)
