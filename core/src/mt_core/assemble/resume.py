"""A run that goes on: its stored config under what may change, and the checkpoint that it goes on from.

Nothing here imports torch.
"""

from __future__ import annotations

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

MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.max_minutes",
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "train.attention",
    "train.compile",
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
    before = read_config(run_folder / "run.yaml")
    # The rows of a step stay those of the run, also where they followed from micro-batch and processes that may change.
    before["train"]["global_batch_size"] = read_json(checkpoint / MANIFEST)["layout"]["global_batch_size"]
    stored = {**before}
    if "epochs" in raw.get("train", {}) or "steps" in raw.get("train", {}):
        stored["train"] = {key: value for key, value in stored["train"].items() if key not in ("steps", "epochs")}
    resolved = resolve(merge(stored, raw), host, origins)
    _refuse_changes(before, resolved.config.as_raw(), run_folder)
    return resolved, checkpoint


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
