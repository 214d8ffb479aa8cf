"""The files in which a run says what it is, and how it ended: ``run.yaml``, ``plugins.lock.json`` and ``about.json``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact
from mt_core.errors import OutputError, describe_error
from mt_core.tracking.logs import for_the_file
from mt_train.checkpoint.files import replace_text
from mt_train.checkpoint.folder import COMPLETED, LOCK, guard_writes
from mt_train.checkpoint.lock import refuse_lost
from mt_train.config.files import write_yaml
from mt_train.loop import Progress


class Description:
    """Writes them on rank 0; without a folder, and on other ranks, it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._is_held = folder is not None and (folder / LOCK).exists()
        self._about: dict[str, Any] = {}

    def write(self, raw: Mapping[str, Any], lock: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write all three; a run that goes on is not complete any more. ``about`` has no secrets (``redact_values``)."""
        if self._folder is None:
            return
        self._about = dict(about)
        with guard_writes(
            self._folder
        ):  # at once each: a run that is killed here must still be one that can be resumed
            (self._folder / COMPLETED).unlink(missing_ok=True)
            replace_text(self._folder / "run.yaml", write_yaml(dict(raw)))
            replace_text(self._folder / "plugins.lock.json", json.dumps(lock, indent=1) + "\n")
            self._write_about(self._folder)

    def refuse_lost(self) -> None:
        """Raise ``OutputError`` when a folder that this run holds was removed or moved: what is written from then on would be lost."""
        if self._folder is not None and self._is_held:
            refuse_lost(self._folder / LOCK)

    def write_end(self, reason: str, step: int, cause: str = "") -> None:
        """Add to ``about.json`` that the run was ``completed`` or ``stopped`` (by what), and after which step; mark a complete one.

        A run that is killed has no end there. Raises ``OutputError`` where the folder is gone.
        """
        if self._folder is None:
            return
        self._about["ended"] = {"reason": reason, "step": step, "error": redact(cause)}
        self.refuse_lost()
        with guard_writes(self._folder):
            self._write_about(self._folder)
            if reason == COMPLETED:
                (self._folder / COMPLETED).touch()
        for_the_file(
            f"{reason} after step {step}" + (f": {cause}" if cause else ""), event={"kind": reason, "step": step}
        )

    @contextmanager
    def failures(self, progress: Progress) -> Iterator[None]:
        """Write down whatever is raised inside as the end of the run: ``failed``, and of what."""
        try:
            yield
        except BaseException as error:
            try:
                self.write_end("failed", progress.step, describe_error(error))
            except OutputError as other:
                for_the_file(f"about.json does not say that the run failed: {other}", logging.WARNING)
            raise

    def _write_about(self, folder: Path) -> None:
        content = json.dumps(self._about, indent=1, ensure_ascii=False)
        replace_text(folder / "about.json", content + "\n")
