"""A run that goes on: its stored config under what may change, and the checkpoint that it goes on from.

Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mt_core.assemble.lock_file import check_lock
from mt_core.checkpoint.files import refuse_special
from mt_core.checkpoint.manifest import MANIFEST, read_manifest
from mt_core.checkpoint.store import LATEST, CheckpointStore, find
from mt_core.config.commandline import merge
from mt_core.config.files import read_config, write_yaml
from mt_core.config.run import SECTIONS, SLOTS
from mt_core.errors import CheckpointError, ConfigError, Fault
from mt_core.plugins.host import PluginHost
from mt_core.plugins.resolve import Origins, Resolved, resolve
from mt_core.protocols import Tokenizer
from mt_core.tracking.logs import first_notice

_SENTENCE = "The quick brown fox's 12 jumps, over 3.5 lazy dogs: naïve façade, Ελλάδα, 日本語!\n\tif x == 0:\n"
MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.max_minutes",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.attention",
    "train.compile",
    "train.tf32",
    "train.on_nonfinite",
    "train.max_skips",
    "log.",
    "checkpoint.",
    "eval.",
    "callbacks",
    "trackers",
    "parallel.",
    "data.cache",
    "data.workers",
    "data.prove",
)
"""Keys that a resumed run may set anew (docs/architecture.md); a trailing dot means a whole section."""


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
    for note in filter(None, (newer_than(checkpoint, folder), check_lock(run_folder))):
        first_notice(note)
    refuse_special(run_folder / "run.yaml")
    before, manifest = read_config(run_folder / "run.yaml"), read_manifest(checkpoint)
    # The rows of a step stay those of the run, also where they followed from micro-batch and processes that may change.
    rows = _rows_of_a_step(manifest, checkpoint)
    _refuse_other_config(_with_rows(manifest.get("config", before), rows), _with_rows(before, rows), run_folder)
    before = merge(before, {"train": {"global_batch_size": rows}})
    raw = _as_found(raw)
    known = dict.fromkeys(flat(before), f"the run {run_folder}") | (origins or {})
    resolved = resolve(merge(before, raw), host, known)
    _refuse_changes(resolve(before, host, known).config.as_raw(), resolved.config.as_raw(), run_folder)
    return resolved, checkpoint


def _rows_of_a_step(manifest: Mapping[str, Any], checkpoint: Path) -> int:
    layout = manifest.get("layout")
    if not isinstance(layout, dict) or "global_batch_size" not in layout:
        raise CheckpointError(f"{checkpoint / MANIFEST} has no layout, so no training run saved it; give another one")
    return int(layout["global_batch_size"])


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


def newer_than(checkpoint: Path, asked: Path) -> str:
    """What to know when a run is gone on with from what is not its last save; nothing when a checkpoint was asked for."""
    saved = [] if asked.resolve() == checkpoint.resolve() else CheckpointStore(checkpoint.parent.parent).list()
    if not saved or saved[-1][1] == checkpoint:
        return ""
    newer = saved[-1][1]
    return (
        f"notice: {checkpoint.parent / LATEST} names {checkpoint.name}, and {newer.name} was saved after it (a save that"
        f" was interrupted, or a file that was changed). The run goes on from {checkpoint.name}; give {newer} to go on"
        " from that one"
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
        if isinstance(value, int) and before.get(key, value) != value
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
    """What tells a tokenizer from most others: its size, its special ids, and how it reads a sentence."""
    told = (tokenizer.size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.encode(_SENTENCE))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def is_finished(output: Path | None, resolved: Resolved, checkpoint: Path) -> bool:
    """Whether the run is complete and asks for no more steps, or epochs, than it has."""
    train = resolved.config.train
    if output is None or not (output / "completed").exists():
        return False
    if train.steps is not None:
        return int(read_manifest(checkpoint)["step"]) >= train.steps
    had = read_config(output / "run.yaml")["train"].get("epochs")
    return had is not None and (train.epochs or 1.0) <= had


def flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of slots and sections."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and (key in SLOTS or key in SECTIONS):
            values |= {f"{key}.{name}": item for name, item in value.items()}
        else:
            values[key] = value
    return values


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    fix = "A resumed run keeps it: leave it out, or start a new run."
    _refuse_differences(flat(_plain(old)), f"in the run {folder}", flat(_plain(new)), "", fix)


def _refuse_other_config(saved: Mapping[str, Any], stored: Mapping[str, Any], folder: Path) -> None:
    fix = "One of the two is damaged, was changed, or is another run's: put it back as it was."
    _refuse_differences(flat(saved), "in the checkpoint", flat(stored), f" in {folder / 'run.yaml'}", fix)


def _refuse_differences(
    before: Mapping[str, Any], where_before: str, after: Mapping[str, Any], where_after: str, fix: str
) -> None:
    faults = [
        Fault(
            key=key.replace("_", "-"),
            problem=f"is {after.get(key)!r}{where_after}, and {before.get(key)!r} {where_before}.",
            fix=fix,
        )
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(MAY_CHANGE)
    ]
    if faults:
        raise ConfigError(faults)


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """As it would come back from a file."""
    content: dict[str, Any] = yaml.safe_load(write_yaml(dict(raw)))
    return content
