"""A run that goes on: its stored config under what may change, and the checkpoint that it goes on from.

Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mt_core.data.text_ids import begin_ids
from mt_core.errors import CheckpointError
from mt_core.plugins.host import PluginHost
from mt_core.plugins.lock_file import check_lock
from mt_core.protocols import Tokenizer
from mt_train.assemble.run_file import (
    flat,
    places_outside,
    read_stored,
    refuse_differences,
    refuse_other_run,
    refuse_unsaid,
)
from mt_train.checkpoint.fields import REQUIRED
from mt_train.checkpoint.manifest import MANIFEST, read_manifest
from mt_train.checkpoint.store import LATEST, CheckpointStore, find
from mt_train.config.commandline import merge
from mt_train.config.files import write_yaml
from mt_train.config.run import RunConfig
from mt_train.plugins.resolve import Origins, Resolved, resolve
from mt_train.tracking.logs import first_notice

COMPLETED = "completed"
"""File of a run that has come to its end."""
ENDED = "ended_by_callback"
"""Key of a manifest: whether a callback ended the run with this step."""
_SENTENCE = "The quick brown fox's 12 jumps, over 3.5 lazy dogs: naïve façade, Ελλάδα, 日本語!\n\tif x == 0:\n"


def resolve_resumed(
    raw: Mapping[str, Any], folder: Path, host: PluginHost, origins: Origins | None = None
) -> tuple[Resolved, Path]:
    """The config of the run in ``folder`` with ``raw`` on top, and its checkpoint.

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
    before = manifest["config"]
    refuse_other_run(_with_rows(before, rows), _with_rows(stored, rows), run_folder)
    before = merge(before, {"train": {"global_batch_size": rows}})
    raw = _as_found(raw)
    known = dict.fromkeys(flat(before), f"the run {run_folder}") | (origins or {})
    kept = resolve(before, host, known).config.as_raw()
    refuse_unsaid(before, stored, raw, run_folder, kept)
    resolved = resolve(merge(before, raw), host, known)
    _refuse_changes(kept, resolved.config.as_raw(), run_folder)
    if places := places_outside(before, raw):
        first_notice(f"notice: beside its folder the run writes to what its checkpoint names: {', '.join(places)}")
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
    """Without a wish to find the micro-batch again: ``run.yaml`` has the one that was found."""
    train = raw.get("train")
    if not isinstance(train, dict) or train.get("micro_batch_size") != "auto":
        return raw
    return {**raw, "train": {key: value for key, value in train.items() if key != "micro_batch_size"}}


def _with_rows(raw: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A config that leaves the rows of a step to other keys, with what these came to."""
    train = raw.get("train")
    given = train.get("global_batch_size") if isinstance(train, dict) else None
    return merge(raw, {"train": {"global_batch_size": rows if given is None else given}})


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


def refuse_other_data(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Raises ``CheckpointError`` when the encoded rows are not those of the run: files or tokenizer have changed since.

    A position in other rows would mean nothing. Checkpoints that do not say what they saw are taken as they are.
    """
    if before is None or before["sha256"] == now["sha256"]:
        return
    figures = [
        f"{key} {before[key]:,} then, {value:,} now"
        for key, value in now.items()
        if isinstance(value, int) and isinstance(before.get(key), int) and before[key] != value
    ]
    raise CheckpointError(
        f"{_what_changed(before, now)} not as in the run that saved the checkpoint:"
        f" {'; '.join(figures) or 'as many, and others'}. Put the files and the tokenizer back, or start a new run with"
        " --model.overlay CHECKPOINT/model"
    )


def _what_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if "tokenizer" not in before:
        return "the rows, or their tokens, are"
    if before["tokenizer"] == now["tokenizer"]:
        return "the rows are"
    return "the tokenizer is" if before["rows"] == now["rows"] else "the tokenizer and the rows are"


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """What tells a tokenizer from most others: its size, its special ids, how it reads a sentence, and what it puts in front."""
    specials = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    told: tuple[object, ...] = (tokenizer.size, *specials, tokenizer.encode(_SENTENCE))
    begin = begin_ids(tokenizer)
    if begin != tuple(token for token in specials[:1] if token is not None):
        told = (*told, begin)  # runs from before tokenizers were asked have the digest without it
    return hashlib.sha256(repr(told).encode()).hexdigest()


def is_finished(output: Path, resolved: Resolved, checkpoint: Path) -> bool:
    """Whether the run is complete, and asks for no more than it had."""
    return (output / COMPLETED).exists() and is_over(checkpoint, resolved.config)


def describe_finished(output: Path, checkpoint: Path) -> str:
    """Say that a run is complete, and where a callback ended it."""
    manifest = read_manifest(checkpoint)
    step, total = manifest["step"], manifest["total_steps"]
    return f"{output} is completed" + (f" (a callback ended it after step {step} of {total})" if step < total else "")


def is_over(checkpoint: Path, config: RunConfig) -> bool:
    """Whether the run had come to its end with this save, and ``config`` asks for no more.

    More are steps or epochs; where a callback ended the run, other callbacks as well.
    """
    manifest = read_manifest(checkpoint)
    if not had_ended(checkpoint, manifest) or _asks_for_more(manifest, config):
        return False
    return manifest["step"] >= manifest["total_steps"] or not callbacks_differ(manifest, config)


def had_ended(checkpoint: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether this save was the last one of a run: of its last step, or of the one with which a callback ended it.

    A manifest of an earlier version does not say the latter: there the newest save of a run that is complete is the one.
    """
    if manifest["step"] >= manifest["total_steps"]:
        return True
    if ENDED in manifest:
        return bool(manifest[ENDED])
    run_folder = checkpoint.parent.parent
    return (run_folder / COMPLETED).exists() and CheckpointStore(run_folder).list()[-1][1] == checkpoint


def callbacks_differ(manifest: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether other callbacks, or other options of them, were there when the checkpoint was saved."""
    return bool(manifest["config"].get("callbacks") != _plain(config.as_raw()).get("callbacks"))


def _asks_for_more(manifest: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether the length is another one: lengths of two kinds can be compared once the rows are known, and not before."""
    had, train = manifest["config"].get("train", {}), config.train
    if train.steps is not None and had.get("steps") is not None:
        return bool(train.steps > had["steps"])
    if train.epochs is not None and had.get("epochs") is not None:
        return bool(train.epochs > had["epochs"])
    return True


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    fix = "A resumed run keeps it: leave it out, or start a new run."
    refuse_differences(flat(_plain(old)), f"in the run {folder}", flat(_plain(new)), "", fix)


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """As it would come back from a file."""
    content: dict[str, Any] = yaml.safe_load(write_yaml(dict(raw)))
    return content
