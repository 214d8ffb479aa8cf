"""A run that goes on: its stored config under what may change, and the checkpoint that it goes on from.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt_core.errors import CheckpointError
from mt_core.plugins.host import PluginHost
from mt_train.assemble.run_file import (
    changed_keys,
    places_outside,
    read_stored,
    refuse_differences,
    refuse_other_run,
    refuse_unsaid,
    with_rows,
)
from mt_train.checkpoint.completion import had_ended, is_over
from mt_train.checkpoint.fields import REQUIRED
from mt_train.checkpoint.manifest import MANIFEST, read_manifest
from mt_train.checkpoint.store import LATEST, CheckpointStore, find
from mt_train.config.commandline import merge
from mt_train.config.files import as_read
from mt_train.config.keys import dotted_keys
from mt_train.config.run import RunConfig
from mt_train.plugins.lock import check_lock
from mt_train.plugins.resolve import Origins, Resolved, resolve
from mt_train.tracking.logs import first_notice


def resolve_resumed(
    raw: Mapping[str, Any], folder: Path, host: PluginHost, origins: Origins | None = None
) -> tuple[Resolved, Path]:
    """Return the config of the run in ``folder`` with ``raw`` on top, and the checkpoint to go on from.

    Raises ``CheckpointError`` where there is none, ``ConfigError`` with both values of each key that may not change.
    """
    checkpoint = find(folder)
    run_folder = checkpoint.parent.parent
    if not (run_folder / "run.yaml").is_file():
        raise CheckpointError(
            f"{run_folder} has no run.yaml, so it is no run that can be resumed; give the run's folder"
        )
    if note := check_lock(run_folder):
        first_notice(note)
    stored, manifest = read_stored(run_folder), read_manifest(checkpoint)
    # The rows of a step stay those of the run, also where they followed from micro-batch and processes that may change.
    rows = _rows_of_a_step(manifest, checkpoint)
    saved = with_rows(manifest["config"], rows)
    refuse_other_run(saved, with_rows(stored, rows), run_folder)
    before = merge(manifest["config"], {"train": {"global_batch_size": rows}}, host.kinds)
    raw = _as_found(raw)
    known = dict.fromkeys(dotted_keys(before), f"the run {run_folder}") | (origins or {})
    resolved = resolve(merge(before, raw, host.kinds), host, known)
    after = resolved.config.as_raw()
    refuse_unsaid(before, stored, raw, run_folder, after)
    if raw and changed_keys(dotted_keys(saved), dotted_keys(after)):
        _refuse_changes(_with_todays_defaults(before, host), after, run_folder)
    if places := places_outside(before, raw):
        first_notice(
            f"notice: beside its folder the run reads or writes what its checkpoint names: {', '.join(places)}"
        )
    return resolved, _place_to_go_on(checkpoint, folder, resolved.config)


def _place_to_go_on(checkpoint: Path, asked: Path, config: RunConfig) -> Path:
    """Return ``checkpoint``, or the newest save where the run had come to its end with that and is asked for no more.

    ``latest`` may name an earlier one by then (``Control.latest``), from which the run would train once more what it has
    trained. A checkpoint that was asked for by its own path is taken.
    """
    saved = [] if asked.resolve() == checkpoint.resolve() else CheckpointStore(checkpoint.parent.parent).list()
    if not saved or saved[-1][1] == checkpoint:
        return checkpoint
    newest = saved[-1][1]
    if is_over(newest, config):
        return newest
    first_notice(_describe_newer(checkpoint, newest))
    return checkpoint


def _rows_of_a_step(manifest: Mapping[str, Any], checkpoint: Path) -> int:
    if missing := [name for name in REQUIRED if name not in manifest]:
        raise CheckpointError(
            f"{checkpoint / MANIFEST} has no {' and no '.join(missing)}, so no training run saved it; give another one"
        )
    return int(manifest["layout"]["global_batch_size"])


def _as_found(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys without a wish to find the micro-batch again: ``run.yaml`` has the one that was found."""
    train = raw.get("train")
    if not isinstance(train, dict) or train.get("micro_batch_size") != "auto":
        return raw
    return {**raw, "train": {key: value for key, value in train.items() if key != "micro_batch_size"}}


def _describe_newer(checkpoint: Path, newest: Path) -> str:
    """Say what to know when a run goes on from what is not its last save."""
    manifest = read_manifest(newest)
    go_on = f"The run goes on from {checkpoint.name}; give {newest} to go on from that one"
    if had_ended(newest, manifest):
        return f"notice: the run ended with {checkpoint.name} as its checkpoint, and its last step is in {newest.name}. {go_on}"
    return (
        f"notice: {checkpoint.parent / LATEST} names {checkpoint.name}, and {newest.name} was saved after it (a save that"
        f" was interrupted, or a file that was changed). {go_on}"
    )


def _with_todays_defaults(before: Mapping[str, Any], host: PluginHost) -> Mapping[str, Any]:
    """Return the config of a run as the plugins installed now resolve it: what they have gained or moved since, nobody asked for."""
    return resolve(before, host).config.as_raw()


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    fix = "A resumed run keeps it: leave it out, or start a new run."
    refuse_differences(dotted_keys(as_read(old)), f"in the run {folder}", dotted_keys(as_read(new)), "", fix)
