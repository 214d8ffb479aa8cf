"""A run that goes on: its stored config under what may change, and the checkpoint that it goes on from.

Nothing here imports torch.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mt_core.checkpoint.manifest import MANIFEST
from mt_core.checkpoint.store import FOLDER, find
from mt_core.checkpoint.tensors import read_json
from mt_core.config.commandline import merge
from mt_core.config.files import read_config, write_yaml
from mt_core.config.run import SECTIONS, SLOTS
from mt_core.errors import CheckpointError, ConfigError, Fault
from mt_core.plugins.host import PluginHost
from mt_core.plugins.resolve import Origins, Resolved, resolve
from mt_core.tracking.logs import is_first, notice

MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.max_minutes",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.attention",
    "train.compile",
    "train.on_nonfinite",
    "train.max_skips",
    "log.",
    "checkpoint.",
    "eval.",
    "callbacks",
    "parallel.",
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
    note = check_plugins(run_folder)
    if note and is_first():
        notice(note)
    before = read_config(run_folder / "run.yaml")
    # The rows of a step stay those of the run, also where they followed from micro-batch and processes that may change.
    before["train"]["global_batch_size"] = read_json(checkpoint / MANIFEST)["layout"]["global_batch_size"]
    known = dict.fromkeys(flat(before), f"the run {run_folder}") | (origins or {})
    resolved = resolve(merge(before, raw), host, known)
    _refuse_changes(before, resolved.config.as_raw(), run_folder)
    return resolved, checkpoint


def refuse_other_data(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Raises ``CheckpointError`` when the encoded rows are not those of the run: files or tokenizer have changed since.

    A position in other rows would mean nothing. Checkpoints that do not say what they saw are taken as they are.
    """
    if before is None or before["sha256"] == now["sha256"]:
        return
    figures = [
        f"{key} {before[key]:,} then, {now[key]:,} now" for key in now if key != "sha256" and before[key] != now[key]
    ]
    raise CheckpointError(
        "the rows, or their tokens, are not those that the run was trained on:"
        f" {'; '.join(figures) or 'as many, and others'}. Put the files and the tokenizer back, or start a new run with"
        " --model.overlay CHECKPOINT/model"
    )


def check_plugins(run_folder: Path) -> str:
    """What to know about plugins that have other versions than the run's; nothing when all are the same.

    Raises ``CheckpointError`` with the ``pip install`` line when one is not installed.
    """
    path = run_folder / "plugins.lock.json"
    locked: dict[str, str] = read_json(path).get("plugins", {}) if path.is_file() else {}
    now = {name: _installed(name) for name in locked}
    line = "pip install " + " ".join(f"{name}=={version}" for name, version in locked.items() if now[name] != version)
    if missing := [name for name, version in now.items() if version is None]:
        raise CheckpointError(f"the run {run_folder} used {', '.join(missing)}, not installed here: {line}")
    other = [f"{name} {locked[name]}, now {now[name]}" for name in locked if now[name] != locked[name]]
    if not other:
        return ""
    return f"notice: the run used {'; '.join(other)}. Equal bits are promised with the same versions only: {line}"


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_checkpoint(folder: Path) -> bool:
    """Whether a run was here and saved something: what ``--resume auto`` asks."""
    checkpoints = folder / FOLDER
    return checkpoints.is_dir() and any(checkpoints.glob(f"step-*/{MANIFEST}"))


def is_finished(output: Path | None, resolved: Resolved, checkpoint: Path) -> bool:
    """Whether the run is complete and asks for no more steps than it has."""
    steps = resolved.config.train.steps
    if output is None or not (output / "completed").exists():
        return False
    return steps is None or int(read_json(checkpoint / MANIFEST)["step"]) >= steps


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
    before, after = flat(old), flat(_plain(new))
    faults = [
        Fault(
            key=key.replace("_", "-"),
            problem=f"is {after.get(key)!r}, and {before.get(key)!r} in the run {folder}.",
            fix="A resumed run keeps it: leave it out, or start a new run.",
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
