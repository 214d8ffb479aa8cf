"""The files in which a run says what it is, and how it ended: ``run.yaml``, ``plugins.lock.json`` and ``about.json``."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact, redact_values
from mt_core.errors import OutputError, StopNow, describe_error
from mt_core.tracking.logs import for_the_file
from mt_core.version import __version__
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.file_names import ABOUT, COMPLETED, LOCK
from mt_train.checkpoint.files import replace_text
from mt_train.checkpoint.folder import guard_writes
from mt_train.checkpoint.lock import refuse_lost
from mt_train.config.files import write_yaml


def about_start(parts: Parts) -> dict[str, Any]:
    """Return what is known of a run before its rows are read: the head of ``about.json``."""
    return {
        "schema": 1,
        "core": __version__,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "model": model_title(parts),
        "origins": dict(parts.origins),
    }


def model_title(parts: Parts) -> str:
    """Family, size, and the plugin that they come from."""
    model = parts.config.model
    size = f" {model.source.variant}" if model.source.variant else ""
    return f"{model.name}{size} from {parts.offers['model'].plugin.label}"


class Description:
    """Writes them on rank 0; without a folder, and on other ranks, it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._is_held = folder is not None and (folder / LOCK).exists()

    def write_start(self, parts: Parts) -> None:
        """Write what is known before the rows are read, so that a run which never comes to train says what it was, and why not."""
        if self._folder is not None:  # without one there is nobody to read it
            self.write(parts.config.as_raw(), parts.lock, redact_values(about_start(parts)))

    def write(self, raw: Mapping[str, Any], lock: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Write all three; a run that goes on is not complete any more. ``about`` has no secrets (``redact_values``)."""
        if self._folder is None:
            return
        with guard_writes(
            self._folder
        ):  # at once each: a run that is killed here must still be one that can be resumed
            (self._folder / COMPLETED).unlink(missing_ok=True)
            replace_text(self._folder / "run.yaml", write_yaml(dict(raw)))
            replace_text(self._folder / "plugins.lock.json", json.dumps(lock, indent=1) + "\n")
            _write_about(self._folder, about)

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
        self.refuse_lost()
        about = _read_about(self._folder) | {"ended": {"reason": reason, "step": step, "error": redact(cause)}}
        with guard_writes(self._folder):
            _write_about(self._folder, about)
            if reason == COMPLETED:
                (self._folder / COMPLETED).touch()
        for_the_file(
            f"{reason} after step {step}" + (f": {cause}" if cause else ""), event={"kind": reason, "step": step}
        )

    @contextmanager
    def failures(self, step: Callable[[], int], stopped_by: Callable[[], str]) -> Iterator[None]:
        """Write down whatever is raised inside as the end of the run: ``failed``, and of what; ``stopped`` before the first step."""
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, StopNow)
            reason, cause = ("stopped", stopped_by()) if stopped else ("failed", describe_error(error))
            try:
                self.write_end(reason, step(), cause)
            except OutputError as other:
                for_the_file(f"about.json does not say that the run {reason}: {other}", logging.WARNING)
            raise


def _write_about(folder: Path, about: Mapping[str, Any]) -> None:
    replace_text(folder / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def _read_about(folder: Path) -> dict[str, Any]:
    """Return what stands there; of a file that somebody has damaged, nothing but the version of what is written now."""
    try:
        content = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {"schema": 1}
