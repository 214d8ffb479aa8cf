"""Copies checkpoints and the files of a run to another place, by fsspec: S3, GCS, Azure, SSH, a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from mt_core import CallbackContext, Control, MtConfig, MtError, first_line

MANIFEST = "manifest.json"
NEEDED = ("run.yaml", "plugins.lock.json")
"""Files of a run without which none of its checkpoints can be resumed."""


class UploadConfig(MtConfig):
    """Target of the upload."""

    url: str = Field(
        min_length=1, description="folder, as s3://bucket/runs or /mnt/runs; the run's own folder is made in it"
    )


class Upload:
    """Upload on rank 0, in the foreground. A copy that fails is said and tried again at the next checkpoint and at the end; it never
    ends a run. A checkpoint's manifest goes last, so what was cut short is never taken for whole. Nothing is removed there.
    """

    def __init__(self, config: UploadConfig) -> None:
        self._url = config.url
        self._files: Any = None
        self._root = ""
        self._waiting: list[Path] = []

    def on_run_start(self, context: CallbackContext) -> None:
        """Find the file system. Raises ``MtError`` where there is none for the address, or nothing will be written.

        A run that only computes steps again (``--replay``) copies nothing.
        """
        if context.output is None:
            if context.step == 0:
                raise MtError("callback upload has nothing to copy: this run writes no files (output none)")
            return
        try:
            import fsspec

            self._files, root = fsspec.core.url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise MtError(
                f"callback upload cannot use {self._url}: {first_line(error)}. pip install 'mt-plugin-callbacks[upload]', and the"
                " package of the storage, such as s3fs"
            ) from error
        self._root = f"{root.rstrip('/')}/{context.output.name}"

    def on_checkpoint_saved(self, context: CallbackContext) -> Control | None:
        """Copy it, behind what it is resumed with, and what is still owed."""
        assert context.checkpoint is not None, "a checkpoint was saved"
        assert context.output is not None, "on_run_start has refused that"
        self._waiting += [path for name in NEEDED if _is_own(path := context.output / name)]
        self._waiting.append(context.checkpoint)
        return self._catch_up(context)

    def on_run_end(self, context: CallbackContext) -> Control | None:
        """Copy what is still owed, and the figures."""
        if context.output is None:
            return None
        self._waiting += [path for path in sorted(context.output.iterdir()) if _is_own(path) and path.name[0] != "."]
        return self._catch_up(context)

    def _catch_up(self, context: CallbackContext) -> Control | None:
        assert context.output is not None, "on_run_start has refused that"
        if context.weights is not None and context.weights.rank != 0:
            return None
        self._waiting = [path for path in self._waiting if path.exists()]  # rotation may have been faster
        try:
            while self._waiting:
                self._copy(self._waiting[0], context.output)
                self._waiting.pop(0)
        except Exception as error:  # noqa: BLE001 - each storage has errors of its own; it is said, and tried again
            return Control(
                say=f"warning: {self._url} cannot be written now ({type(error).__name__}: {first_line(error)})"
            )
        return None

    def _copy(self, path: Path, run: Path) -> None:
        found = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if _is_own(each)]
        for file in sorted(found, key=lambda each: each.name == MANIFEST):
            place = f"{self._root}/{file.relative_to(run).as_posix()}"
            self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(file), place)


def _is_own(path: Path) -> bool:
    """Return whether it is a file of the run itself: a link may lead to anything that its user can read."""
    return path.is_file() and not path.is_symlink()
