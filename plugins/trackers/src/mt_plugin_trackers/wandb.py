"""Weights & Biases. The key comes from ``WANDB_API_KEY`` or ``wandb login``, never from a config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mt_core import MtConfig, StepRecord, TrackedRun

from .service import figures, id_file, keep_id, kept_id, package

FOLDER = "wandb"
"""Folder that the package writes into, within the run's."""


class WandbConfig(MtConfig):
    """Place of the run at the service."""

    project: str = Field("mt", min_length=1, description="project of the run")
    entity: str | None = Field(None, min_length=1, description="user or team; default is that of the key")
    group: str | None = Field(None, min_length=1, description="runs that belong together")
    tags: tuple[str, ...] = Field((), description="words to find the run by")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None,
        description="offline writes into the run's folder, to be sent with `wandb sync`; default is WANDB_MODE, else online",
    )


class WandbTracker:
    """Sends figures, the config and nothing else: no console output, no code, no address of a repository."""

    def __init__(self, config: WandbConfig, run: TrackedRun) -> None:
        wandb = package("wandb", "wandb")
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            tags=list(config.tags) or None,
            name=run.name,
            id=kept_id(run.output, "wandb"),
            resume="allow",
            dir=None if run.output is None else str(run.output),
            config=dict(run.config),
            mode=config.mode,
            reinit="create_new",
            settings=wandb.Settings(
                console="off", save_code=False, disable_git=True, disable_code=True, silent=True, symlink=False
            ),
        )
        self._folder = None if run.output is None else run.output / FOLDER
        _remove_links_out(self._folder)  # already now: a run that is killed does not close its trackers
        keep_id(run.output, "wandb", self._run.id)
        # Not wandb's own count, which only grows: a resumed run writes the steps after its checkpoint again.
        self._run.define_metric("*", step_metric="step")

    def log(self, record: StepRecord) -> None:
        """Send one step."""
        self._run.log({"step": record.step, **figures(record)})

    def close(self, *, failed: bool) -> None:
        """Send what is left, and say how it ended."""
        self._run.finish(exit_code=int(failed))
        _remove_links_out(self._folder)


def _remove_links_out(folder: Path | None) -> None:
    """Remove wandb's link to the log of its service in the user's cache, for which it has no setting: a run's folder that leads out of
    itself is not resumed."""
    if folder is None or folder.is_symlink():
        return
    inside = folder.resolve()
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                path.unlink(missing_ok=True)


def build_wandb(config: WandbConfig, *, run: TrackedRun) -> Any:
    """The tracker. Raises ``MtError`` where wandb is not installed."""
    return WandbTracker(config, run)


def wandb_files(config: WandbConfig) -> tuple[str, ...]:
    """The id of the run, and what the package keeps there: names within a run's folder."""
    return FOLDER, id_file("wandb")
