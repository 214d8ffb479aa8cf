"""The end of a run: what its folder and its checkpoints say. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_train.checkpoint.file_names import COMPLETED
from mt_train.checkpoint.manifest import read_manifest
from mt_train.checkpoint.store import CheckpointStore
from mt_train.config.files import as_read
from mt_train.config.run import RunConfig

ENDED = "ended_by_callback"
"""Key of a manifest: whether a callback ended the run with this step."""


def is_finished(output: Path, config: RunConfig, checkpoint: Path) -> bool:
    """Return whether the run is complete, and asks for no more than it had."""
    return (output / COMPLETED).exists() and is_over(checkpoint, config)


def describe_finished(output: Path, checkpoint: Path) -> str:
    """Say that a run is complete, and where a callback ended it."""
    manifest = read_manifest(checkpoint)
    step, total = manifest["step"], manifest["total_steps"]
    return f"{output} is completed" + (f" (a callback ended it after step {step} of {total})" if step < total else "")


def is_over(checkpoint: Path, config: RunConfig) -> bool:
    """Return whether the run had come to its end with this save, and ``config`` asks for no more.

    More are steps or epochs; where a callback ended the run, other callbacks as well.
    """
    manifest = read_manifest(checkpoint)
    if not had_ended(checkpoint, manifest) or _asks_for_more(manifest, config):
        return False
    return manifest["step"] >= manifest["total_steps"] or not callbacks_differ(manifest, config)


def had_ended(checkpoint: Path, manifest: Mapping[str, Any]) -> bool:
    """Return whether this save was the last one of a run: of its last step, or of the one with which a callback ended it.

    A manifest of an earlier version does not say the latter: there the newest save of a run that is complete is the one.
    """
    if manifest["step"] >= manifest["total_steps"]:
        return True
    if ENDED in manifest:
        return bool(manifest[ENDED])
    run_folder = checkpoint.parent.parent
    return (run_folder / COMPLETED).exists() and CheckpointStore(run_folder).list()[-1][1] == checkpoint


def callbacks_differ(manifest: Mapping[str, Any], config: RunConfig) -> bool:
    """Return whether other callbacks, or other options of them, were there when the checkpoint was saved."""
    return bool(manifest["config"].get("callbacks", []) != as_read(config.as_raw())["callbacks"])


def _asks_for_more(manifest: Mapping[str, Any], config: RunConfig) -> bool:
    """Return whether the length is another one: lengths of two kinds can be compared once the rows are known, and not before."""
    had, train = manifest["config"].get("train", {}), config.train
    if train.steps is not None and had.get("steps") is not None:
        return bool(train.steps > had["steps"])
    if train.epochs is not None and had.get("epochs") is not None:
        return bool(train.epochs > had["epochs"])
    return True
