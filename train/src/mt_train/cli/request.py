"""The request of ``mt-train``: what its command line, a recipe and config files ask for. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mt_core.config.secrets import redact
from mt_core.errors import UsageError
from mt_core.files import is_remote
from mt_core.plugins.host import PluginHost
from mt_core.plugins.lock_file import RUN_FILE
from mt_train.assemble.directory import path_from
from mt_train.assemble.remote_run import fetch_run
from mt_train.checkpoint.store import has_checkpoint
from mt_train.config.commandline import CommandLine
from mt_train.config.layers import Layer, Layers
from mt_train.config.names import expand
from mt_train.plugins.lock import check_lock
from mt_train.plugins.recipes import read_sources
from mt_train.plugins.resolve import Origins
from mt_train.tracking.logs import first_notice

SWITCHES = ("overwrite", "print_config", "dry_run", "schema", "json", "plan", "debug", "version", "help")
PLANNED = ("nnodes", "json", "plot", "gpu", "network", "host_memory", "plan")
"""Options that go with ``--dry-run`` only."""
VALUES = (
    "recipe",
    "output",
    "resume",
    "nproc_per_node",
    "nnodes",
    "restart",
    "replay",
    "profile",
    "plot",
    "gpu",
    "network",
    "host_memory",
    "completion",
)
REPEATED = ("block_plugin", "config")
ORIGINS_VARIABLE = "MT_ORIGINS"
"""Names the file that tells a process of ``--nproc-per-node`` which key came from which source: its own config is a scratch file."""
PATHS = ("output", "resume", "plot")
"""Values that may begin with the @name of a path."""
OWN_PATHS = frozenset({*PATHS, "profile"})
"""Values that are paths, of the command and not of the run."""


@dataclass(frozen=True)
class Request:
    """Request made by a command line, its recipe and its config files. ``raw`` has the keys of the run, wherever they stood."""

    flags: Mapping[str, Any]
    raw: dict[str, Any]
    layers: Layers

    @property
    def origins(self) -> Origins:
        """Return the source of each key."""
        return self.layers.origins

    def from_directory(self, here: Path) -> Request:
        """Return the request of a command that started in ``here`` as it is from another directory; a relative ``here`` is this one."""
        named = {name: self.flags[name] for name in OWN_PATHS & self.flags.keys()} if here.is_absolute() else {}
        moved = {name: str(path_from(here, Path(path))) for name, path in named.items() if path not in ("auto", "none")}
        return replace(self, flags={**self.flags, **moved})


def read_request(line: CommandLine, host: PluginHost) -> Request:
    """Return the request of a recipe, YAML or JSON files over it, the command line on top, and which key came from which."""
    flags = {name: expand(value) if name in PATHS else value for name, value in line.flags.items()}
    flags = _with_local_folders(flags)
    files = [Path(expand(file)) for file in flags.get("config", [])]
    for path in files:
        if path.name == RUN_FILE and (note := check_lock(path.parent)):  # it repeats a run, whose plugins must be here
            first_notice(note)
    layers = read_sources(flags.get("recipe"), files, host)
    found = Layers.of([*layers, Layer("command line", line.raw)], host.kinds)
    if file := os.environ.get(ORIGINS_VARIABLE):
        found = replace(found, origins=json.loads(Path(file).read_text("utf-8")))
    return Request(flags, found.raw, found)


def find_resumed_folder(request: Request) -> Path | None:
    """Return the folder that ``--resume`` means: a run or checkpoint; with ``auto`` the output's own run, if it has saved anything."""
    wish = request.flags.get("resume")
    if wish is None:
        return None
    if wish != "auto":
        if "output" in request.flags:
            raise UsageError("--resume goes on in the run's own folder; leave out --output")
        return Path(wish)
    if request.flags.get("output", "none") == "none" or "overwrite" in request.flags:
        raise UsageError("--resume auto looks for a run in --output FOLDER: give one, and no --overwrite")
    folder = Path(request.flags["output"])
    if has_checkpoint(folder):
        return folder
    first_notice(f"notice: nothing to resume in {folder}, so the run starts from the beginning")
    return None


def _with_local_folders(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags, with the run that an address means fetched. Raises ``UsageError`` for an address to write to."""
    if is_remote(flags.get("output", "")):
        raise UsageError(
            f"--output {redact(flags['output'])} is an address, and a run writes to a disk; give a folder, and --callbacks upload, which"
            " copies what it saves to --callbacks.upload.url"
        )
    if not is_remote(flags.get("resume", "")):
        return flags
    output = flags.get("output")
    kept = {name: value for name, value in flags.items() if name != "output"}
    return {**kept, "resume": str(fetch_run(flags["resume"], Path(output) if output else None))}
