"""Whether a run fits into the memory of its GPUs, which keys would make it fit, and how long its rows may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from mt_train.config.bounds import MOST_TOKENS
from mt_train.config.run import RunConfig
from mt_train.engine.layout_suggestion import with_changes
from mt_train.engine.plan import Plan
from mt_train.planning.candidates import Candidate, Room, weigh
from mt_train.planning.dry_run import PaperRun

KEYS = (
    "train.micro_batch_size",
    "train.activation_checkpointing",
    "parallel.zero_stage",
    "parallel.sequence",
    "parallel.expert",
    "parallel.pipeline",
    "parallel.offload",
)
"""Keys that a fix may change, the ones that cost least time first; none of them changes the gradient beyond rounding."""

MOST_FIXES = 3
MOST_KEYS = 3
"""Keys that are changed together at most."""
MOST_NODES = 1024
"""Nodes up to which more of them are tried."""
LEANER: dict[bool | str, tuple[bool | str, ...]] = {
    False: (True, "host"),
    "selective": ("full", "host"),
    "full": ("host",),
}
"""Values of ``train.activation_checkpointing`` that keep less on the device, the one that costs least time first."""
ROW_UNIT = 128
"""Lengths of rows are rounded down to a multiple of this (tokens)."""
ROW_SLACK = 1 / 64
"""Share of the longest row that may be missing."""


@dataclass(frozen=True, kw_only=True)
class Fix:
    """Keys and their values with which a run fits, and the layout that they make."""

    changes: Mapping[str, Any]
    candidate: Candidate


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a run fits; if not, the nearest ``fixes`` and the number of ``nodes`` from which on it does at ZeRO 3. ``longest_row`` fits
    with the keys as they are; ``None`` where none does, or nobody can count what layers keep."""

    candidate: Candidate
    fits: bool
    fixes: tuple[Fix, ...]
    nodes: int | None
    longest_row: int | None


def judge(paper: PaperRun, room: Room) -> Verdict:
    """Return the verdict on a run as it is."""
    config = pinned_rows(paper.parts.config, paper.plan)
    candidate = weigh(paper, config, paper.plan.world)
    assert candidate is not None, "the dry run has accepted this layout"
    fits = room.holds(candidate)
    longest = longest_row(paper, config, room)
    fixes = () if fits else tuple(_find_fixes(paper, config, room, longest))
    return Verdict(
        candidate=candidate,
        fits=fits,
        fixes=fixes,
        nodes=None if fits or fixes else _find_nodes(paper, config, room),
        longest_row=longest,
    )


def pinned_rows(config: RunConfig, plan: Plan) -> RunConfig:
    """Return the config with the rows of a step as they are, and a number of rows at a time, so that other layouts compute the same."""
    rows = {"train.global_batch_size": plan.global_batch_size, "train.micro_batch_size": plan.micro_batch_size}
    return with_changes(config, rows)


def longest_row(paper: PaperRun, config: RunConfig, room: Room) -> int | None:
    """Return the most tokens of a row with which a run fits as it is, found by the slope of memory over length and then weighed."""

    def weighed(tokens: int) -> Candidate:
        candidate = weigh(paper, config, paper.plan.world, tokens)
        assert candidate is not None, "a length of rows changes no layout"
        return candidate

    fits, beyond = ROW_UNIT * paper.plan.sequence, MOST_TOKENS + 1
    last, ahead = weighed(fits), weighed(2 * fits)
    slope = (ahead.needed - last.needed) / fits
    if slope <= 0 or not room.holds(last):
        return None
    while beyond - fits > max(ROW_UNIT, fits * ROW_SLACK):
        guess = fits + int((room.device - last.needed) / slope)
        guess = max(fits + ROW_UNIT, guess if guess < beyond else (fits + beyond) // 2) // ROW_UNIT * ROW_UNIT
        candidate = weighed(min(guess, MOST_TOKENS))
        slope = max((candidate.needed - last.needed) / (guess - fits), 1 / ROW_UNIT)
        if not room.holds(candidate):
            beyond = guess
        elif guess >= MOST_TOKENS:
            return MOST_TOKENS
        else:
            fits, last = guess, candidate
    return fits


def _find_fixes(paper: PaperRun, config: RunConfig, room: Room, longest: int | None) -> list[Fix]:
    """Return the fewest keys that make a run fit, and other sets of as many; shorter rows last."""
    for count in range(1, MOST_KEYS + 1):
        found = [fix for keys in combinations(KEYS, count) if (fix := _nearest_fix(paper, config, room, keys))]
        if count == 1 and longest is not None and (fix := _shorter_rows(paper, config, room, longest)):
            found = [*found[: MOST_FIXES - 1], fix]
        if found:
            return found[:MOST_FIXES]
    return []


def _nearest_fix(paper: PaperRun, config: RunConfig, room: Room, keys: tuple[str, ...]) -> Fix | None:
    """Return the smallest change of exactly these keys with which a run fits."""
    values = [list(_values(config, paper.plan, key)) for key in keys]
    if not all(values):
        return None
    for places in sorted(product(*(range(len(each)) for each in values)), key=sum):
        changes = {key: each[place] for key, each, place in zip(keys, values, places, strict=True)}
        candidate = weigh(paper, with_changes(config, changes), paper.plan.world)
        if candidate is not None and room.holds(candidate):
            return Fix(changes={**changes, **_rows_to_give(paper, candidate)}, candidate=candidate)
    return None


def _shorter_rows(paper: PaperRun, config: RunConfig, room: Room, longest: int) -> Fix | None:
    changed = with_changes(config, {"train.sequence_len": longest})
    candidate = weigh(paper, changed, paper.plan.world)
    if longest >= config.train.sequence_len or candidate is None or not room.holds(candidate):
        return None
    return Fix(changes={"train.sequence_len": longest}, candidate=candidate)


def _rows_to_give(paper: PaperRun, candidate: Candidate) -> dict[str, int]:
    """Return the rows of a step where the run leaves them to the layout, and the layout would make others of them."""
    given, plan = paper.parts.config.train.global_batch_size, candidate.plan
    same = plan.micro_batch_size * plan.data_ranks == plan.global_batch_size
    return {} if given is not None or same else {"train.global_batch_size": plan.global_batch_size}


def _values(config: RunConfig, plan: Plan, key: str) -> Iterator[Any]:
    """Yield values of a key that need less memory than its own, the nearest first."""
    if key == "train.micro_batch_size":
        rows = plan.global_batch_size // plan.data_ranks
        yield from (n for n in range(plan.micro_batch_size - 1, 0, -1) if rows % n == 0)
    elif key == "train.activation_checkpointing":
        yield from LEANER.get(config.train.recomputed or False, ())
    elif key == "parallel.zero_stage":
        yield from range(plan.zero_stage + 1, 4)
    elif key == "parallel.offload":
        known = ("none", "optimizer", "parameters")
        yield from known[known.index(config.parallel.offload) + 1 :]
    else:
        own = {"parallel.sequence": plan.sequence, "parallel.expert": plan.expert, "parallel.pipeline": plan.pipeline}[
            key
        ]
        yield from (n for n in range(own + 1, min(plan.world, 64) + 1) if plan.world % n == 0 and n % own == 0)


def _find_nodes(paper: PaperRun, config: RunConfig, room: Room) -> int | None:
    """Return a number of nodes on which the run fits at ZeRO 3 with a row at a time, recomputed: a power of two, as rows divide by."""
    plan = paper.plan
    nodes = max(1, plan.world // room.per_node)
    changes = {"parallel.zero_stage": 3, "train.micro_batch_size": 1, "train.activation_checkpointing": True}
    while (nodes := 2 * nodes) <= MOST_NODES:
        world = nodes * room.per_node
        rows = max(config.train.global_batch_size or 1, world // (plan.sequence * plan.pipeline))
        candidate = weigh(paper, with_changes(config, {**changes, "train.global_batch_size": rows}), world)
        if candidate is not None and room.holds(candidate):
            return nodes
    return None
