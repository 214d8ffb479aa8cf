"""The agreement of all processes of a run, asked for before the first step, since a difference would show late or never.

On one machine nothing can differ that the launcher does not give. Nodes have disks, files, packages and caches of their own.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mt_core.errors import CheckpointError, MtError, OutputError, UsageError
from mt_core.files.writing import open_new
from mt_train.assemble.parts import Parts
from mt_train.checkpoint.store import verify
from mt_train.config.keys import dotted_keys
from mt_train.data.locks import ASK_SECONDS
from mt_train.engine.processes import Process, ranks_where, share_text
from mt_train.plugins.lock import lock_content

if TYPE_CHECKING:
    from mt_train.assemble.data import RunData

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0
"""Longest that a file which another node wrote may take to show: NFS remembers for up to 60 s (acdirmax) what was not there."""
PROBE = ".tmp-probe"


def refuse_folders_apart(folder: Path, process: Process, *, patience: float) -> None:
    """Raise ``OutputError`` on every rank unless all nodes see, within ``patience`` seconds, what rank 0 writes into the folder."""
    if process.world == 1:
        return
    token = share_text(f"{platform.node()} {time.time_ns()}")
    probe = folder / PROBE
    if process.is_main:
        probe.unlink(missing_ok=True)
        with open(probe, "x", encoding="utf-8", opener=open_new) as file:
            file.write(token)
    share_text("written")
    # One rank of a node sees for all of them.
    blind = ranks_where(process.local_rank == 0 and not _shows(probe, token, min(patience, PATIENCE_SECONDS)))
    if process.is_main:
        probe.unlink()
    if blind:
        node = share_text(platform.node(), source=blind[0])
        raise OutputError(
            f"rank 0 on {token.partition(' ')[0]} writes the run to {folder}, and {_name_ranks(blind)} on {node} cannot see it there"
            " (checkpoints need one folder for all); put --output on a file system that all nodes share, mounted at the"
            " same path"
        )


def _shows(probe: Path, token: str, patience: float) -> bool:
    """Return whether the file is there, with this content, within ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if probe.read_text(encoding="utf-8") == token:
                return True
        except FileNotFoundError:
            pass
        except OSError:  # no permission, a folder that is not mounted: it is not seen
            return False
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def verify_together(checkpoint: Path, process: Process) -> dict[str, Any]:
    """The manifest of a checkpoint, whose files the ranks check in shares. Raises ``CheckpointError`` on every rank."""
    return act_together(lambda: verify(checkpoint, share=(process.rank, process.world)), CheckpointError)


def act_together(act: Callable[[], Result], *kinds: type[MtError]) -> Result:
    """Do something on every rank. Raises on all of them what the first one says that could not.

    Ranks that could raise the first of ``kinds`` that its error is one of, the most special of them in front.
    """
    failure: MtError | None = None
    try:
        result = act()
    except MtError as error:
        failure = error
    failed = ranks_where(failure is not None)
    if not failed:
        return result
    number = next((number for number, kind in enumerate(kinds) if isinstance(failure, kind)), len(kinds))
    number, text = json.loads(share_text(json.dumps([number, str(failure)]), source=failed[0]))
    if failure is not None and str(failure) == text:
        raise failure
    raise (*kinds, MtError)[number](text) from failure


@contextmanager
def hold_lock_together(ask: Callable[[], int | None], say: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of which ``ask`` gives one rank a handle, as soon as it is free; ``say`` is called once where it is not.

    All ranks ask and wait together, so that none waits too long in a collective.
    """
    is_told = False
    while not ranks_where((handle := ask()) is not None):
        if not is_told:
            say()
        is_told = True
        time.sleep(ASK_SECONDS)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def refuse_other_start(parts: Parts, checkpoint: Path | None, process: Process) -> None:
    """Raise ``UsageError`` on every rank unless all have one config, checkpoint and set of versions."""
    if process.world > 1:  # the hash of all code takes longer than a small run's first step
        _refuse(_start(parts, checkpoint), process, "Start every node with the same command, files and packages.")


def refuse_other_rows(data: RunData, process: Process) -> None:
    """Raise ``UsageError`` on every rank unless all have encoded the same rows."""
    if process.world > 1:
        fix = "Give every node the same data files and tokenizer."
        _refuse({f"rows: {key}": value for key, value in data.fingerprint.items()}, process, fix)


def _refuse(here: Mapping[str, Any], process: Process, fix: str) -> None:
    first = json.loads(share_text(json.dumps(here, default=str)))
    now = json.loads(json.dumps(here, default=str))
    differences = [key for key in sorted(first.keys() | now.keys()) if not _is_same(first.get(key), now.get(key))]
    other = ranks_where(bool(differences))
    if other:
        shown = [f"{key} is {now.get(key)!r} there and {first.get(key)!r} on rank 0" for key in differences[:5]]
        said = share_text(f"{platform.node()}: {'; '.join(shown)}", source=other[0])
        raise UsageError(f"{_name_ranks(other)} would start another run than rank 0; on {said}. {fix}")


def _start(parts: Parts, checkpoint: Path | None) -> dict[str, Any]:
    """Keys of the config, the checkpoint's name, and versions and code of what computes."""
    lock = lock_content(parts.offers.values())
    versions = {f"version of {name}": version for name, version in {**lock["plugins"], **lock["libraries"]}.items()}
    versions |= {f"SHA-256 of the code of {name}": value[:12] for name, value in lock["sha256"].items()}
    return dotted_keys(parts.config.as_raw()) | versions | {"checkpoint": checkpoint.name if checkpoint else None}


def _is_same(first: Any, second: Any) -> bool:
    """Equal, or two absolute paths: nodes may have their copies in different places."""
    paths = all(isinstance(value, str) and value.startswith("/") for value in (first, second))
    return paths or first == second


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"
