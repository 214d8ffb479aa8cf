"""One layout of a run on paper, weighed: its plan, and the memory that the dry run counts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mt_core.errors import MtError
from mt_train.config.run import RunConfig
from mt_train.engine.plan import Plan, layout_faults, make_plan
from mt_train.planning.dry_run import PaperRun, count_row_tokens, stages_on_paper

KEPT_FREE = 0.1
"""Share that is added to what a rank is counted to hold: for what an allocator loses, kernels' workspaces and the device's own context."""
USUAL_HOST = 2 * 2**40
"""Bytes of host memory that a node is taken to have where nobody says it: those of a DGX H100 (https://docs.nvidia.com/dgx/dgxh100-user-guide)."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes of memory of a device, and of the host of a node, which so many ranks share."""

    device: int
    host: int
    per_node: int

    def holds(self, candidate: Candidate) -> bool:
        """Return whether a layout fits, with ``KEPT_FREE`` on top."""
        return candidate.needed <= self.device and candidate.host * self.per_node * (1 + KEPT_FREE) <= self.host


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout that the plan accepts. ``stages`` as the dry run has them; ``row_tokens`` of its longest row."""

    config: RunConfig
    plan: Plan
    row_tokens: int
    stages: list[dict[str, Any]]

    @property
    def device(self) -> int:
        """Bytes on the device of the rank that holds most."""
        return max(memory_bytes(stage["memory"], "device") for stage in self.stages)

    @property
    def needed(self) -> int:
        """Bytes that the device must have."""
        return round(self.device * (1 + KEPT_FREE))

    @property
    def host(self) -> int:
        """Bytes in the host's memory for the rank that has most there."""
        return max(memory_bytes(stage["memory"], "host") for stage in self.stages)


def memory_bytes(memory: Mapping[str, Any], place: str) -> int:
    """Add up what a rank holds in a place; what could not be counted is nothing."""
    return sum(part[place] for part in memory.values() if part is not None)


def accepted_plan(paper: PaperRun, config: RunConfig, world: int) -> Plan | None:
    """Return the plan of a config; ``None`` where the real check of layouts refuses it."""
    device, offers = paper.plan.device, tuple(paper.parts.offers.values())
    if layout_faults(config, world, (device,), offers):
        return None
    return make_plan(config, world=world, device=device, offers=offers)


def weigh(paper: PaperRun, config: RunConfig, world: int, row_tokens: int | None = None) -> Candidate | None:
    """Count the memory of a layout, of rows of another length where one is given; ``None`` for one that is refused."""
    plan = accepted_plan(paper, config, world)
    if plan is None:
        return None
    tokens = count_row_tokens(config, paper.data) if row_tokens is None else row_tokens
    try:
        stages = stages_on_paper(config, plan, paper.counts, paper.data, tokens)
    except MtError:  # a model that cannot be cut, or whose experts cannot be divided, so: known when it is drawn
        return None
    return Candidate(config=config, plan=plan, row_tokens=tokens, stages=stages)
