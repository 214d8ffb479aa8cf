"""Rank of this process, as a launcher says it in the environment.

The names are torchrun's: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mt_core.errors import UsageError
from mt_train.config.digits import parse_whole_number

MOST_PROCESSES = 100_000
"""Above this a number of processes is a slip, and lists of ranks would take the memory of the machine."""
_PORTS = 65_535


@dataclass(frozen=True)
class Ranks:
    """This process among all of a run, and among those of this machine."""

    rank: int
    world: int
    local_rank: int


def ranks(*, planned: bool = False) -> Ranks:
    """Read ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK``; one process without them. Raises ``UsageError`` for what they cannot be.

    A run that is only ``planned`` needs no ``RANK``: ``WORLD_SIZE=64 mt-train --dry-run`` is the plan of 64 processes.
    """
    faults = list(_faults(os.environ, planned=planned))
    if faults:
        said = "; ".join(faults)
        raise UsageError(
            f"the environment describes no process of a run: {said}. A launcher such as torchrun sets these; unset them to train"
            " in one process"
        )
    rank, world, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Ranks(rank, max(1, world), local)


def _faults(environment: Mapping[str, str], *, planned: bool) -> Iterator[str]:
    world = _read(environment, "WORLD_SIZE", 1)
    if world is None or not 1 <= world <= MOST_PROCESSES:
        yield f"WORLD_SIZE is {environment['WORLD_SIZE']!r}, and takes a number from 1 to {MOST_PROCESSES:,}"
        return
    rank = _read(environment, "RANK", 0)
    if "RANK" not in environment and world > 1 and not planned:
        yield f"WORLD_SIZE is {world}, and RANK is not set"
    elif rank is None or rank >= world:
        allowed = "0" if world == 1 else f"a number from 0 to {world - 1}"
        yield f"RANK is {environment['RANK']!r}, and takes {allowed} where WORLD_SIZE is {world}"
    local = _read(environment, "LOCAL_RANK", 0)
    if local is None or local >= world:
        yield f"LOCAL_RANK is {environment['LOCAL_RANK']!r}, and takes a number below WORLD_SIZE, {world}"
    port = _read(environment, "MASTER_PORT", 1)
    if world > 1 and (port is None or not 1 <= port <= _PORTS):
        yield f"MASTER_PORT is {environment['MASTER_PORT']!r}, and takes a number from 1 to {_PORTS}"


def _read(environment: Mapping[str, str], name: str, default: int) -> int | None:
    return parse_whole_number(environment[name]) if name in environment else default
