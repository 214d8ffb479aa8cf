"""Values of a space that a run's config refuses, found on paper: every choice and both ends of every range are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from mt_core import ConfigError, Fault
from mt_train import RunConfig, check_config, load_config

from .space import Range, Space, Value, option, option_text, with_values

MOST = 64
"""Combinations of probes that are tried beside each value on its own; a config takes some milliseconds."""


def refusals(raw: Mapping[str, Any], space: Space, *, processes: int | None, metric: str) -> list[Fault]:
    """Return what is wrong with the run, whatever the values, and which values it refuses; each fault once."""
    found: dict[str, Fault] = {}
    for values, key in _probes(space):
        for fault in _faults(with_values(raw, values), processes, metric):
            found.setdefault(str(fault), _fault_of_space(fault, space, values, key))
    told = {str(fault): fault for fault in found.values()}
    return list(told.values())


def _probes(space: Space) -> Iterator[tuple[dict[str, Value], str]]:
    """Values for all keys, and the one that differs from the first values; then combinations of them."""
    first = {key: dimension.probes[0] for key, dimension in space.items()}
    yield first, ""
    for key, dimension in space.items():
        yield from (({**first, key: value}, key) for value in dimension.probes[1:])
    rows = [dimension.probes for dimension in space.values()]
    yield from ((dict(zip(space, values, strict=True)), "") for values in islice(product(*rows), MOST))


def _faults(raw: dict[str, Any], processes: int | None, metric: str) -> tuple[Fault, ...]:
    """Return the reasons why this config cannot run, or never gives the figure. An unknown number of processes is not checked."""
    try:
        config = load_config(raw) if processes is None else check_config(raw, processes=processes)
    except ConfigError as error:
        return error.faults
    return _never_comes(config, metric)


def _never_comes(config: RunConfig, metric: str) -> tuple[Fault, ...]:
    if not metric.startswith("eval_") or config.data.eval is not None:
        return ()
    fix = "Set data.eval, or take a figure of the training, as in --metric loss:min."
    return (Fault(key="metric", problem=f"{metric} never comes: this run holds no rows out.", fix=fix),)


def _fault_of_space(fault: Fault, space: Space, values: Mapping[str, Value], key: str) -> Fault:
    """The fault as one of the space, where the value of one of its keys is to blame."""
    named = fault.key.replace("-", "_")
    blamed = named if named in space else f"{named}.name" if f"{named}.name" in space else key
    if not blamed:
        return fault
    dimension = space[blamed]
    where = fault.problem if named == blamed.removesuffix(".name") else str(fault)
    if where.startswith("no such"):
        names = f"{blamed.partition('.')[0]}.name"
        if blamed != names and names in space:  # the others may have the key
            rest = where.removeprefix("no such key.")
            where = f"{option_text(values[names])} has no such key, and every trial of the search sets it.{rest}"
        return Fault(key=option(blamed), problem=where, fix=fault.fix)
    what = "the range" if isinstance(dimension, Range) else "the choices"
    problem = f"{option_text(values[blamed])} of {what} {dimension} is refused: {where}"
    return Fault(key=option(blamed), problem=problem, fix=fault.fix)


def search_notices(raw: Mapping[str, Any], space: Space, *, prunes: bool) -> list[str]:
    """Return what a search does that is likely not meant."""
    pruning = _pruning_notices(raw, space) if prunes else []
    return [*_lost_option_notices(raw, space), *_coarse_notices(raw, space), *pruning]


def _pruning_notices(raw: Mapping[str, Any], space: Space) -> list[str]:
    """Trials whose only evaluation is that at their end, which have nothing to be compared by before."""
    if any(key in space for key in ("train.steps", "train.epochs", "eval.every_steps", "eval.every_epochs")):
        return []
    config = load_config(with_values(raw, {key: dimension.probes[0] for key, dimension in space.items()}))
    steps, every = config.train.steps, config.eval.every_steps
    if steps is None or config.eval.every_epochs is not None or (every is not None and every < steps):
        return []
    return [
        f"notice: no trial ends early: a run of {steps} steps is evaluated at its end alone; set --eval.every-steps to"
        f" {max(1, steps // 4)}, or --prune none"
    ]


def _lost_option_notices(raw: Mapping[str, Any], space: Space) -> list[str]:
    """Options that were given beside a name: trials with another name do not have them, as on the command line of ``mt-train``."""
    notes = []
    for key, dimension in space.items():
        slot, _, last = key.rpartition(".")
        given = raw.get(slot)
        if last != "name" or not isinstance(given, Mapping) or given.get("name") is None:
            continue
        lost = [f"{slot}.{name}" for name in given if name != "name" and f"{slot}.{name}" not in space]
        others = [value for value in dimension.probes if value != given["name"]]
        if lost and others:
            belong, them = ("belongs", "it") if len(lost) == 1 else ("belong", "them")
            notes.append(
                f"notice: {', '.join(lost)} {belong} to {slot} {given['name']}, so trials of {', '.join(map(option_text, others))} do"
                f" not have {them}; search {them} too, or give {them} without the name {given['name']}, which is for all trials"
            )
    return notes


def _coarse_notices(raw: Mapping[str, Any], space: Space) -> list[str]:
    """Keys that take fractions, and are searched in whole numbers since both ends are written so: likely not what was meant."""
    first = {key: dimension.probes[0] for key, dimension in space.items()}
    notes = []
    for key, dimension in space.items():
        if not isinstance(dimension, Range) or not dimension.whole or dimension.step is not None:
            continue
        middle = dimension.low + 0.5
        if not _faults(with_values(raw, {**first, key: middle}), None, ""):
            notes.append(
                f"notice: {option(key)} takes fractions, and {dimension} is written in whole numbers, so only those are tried;"
                f" for fractions write {float(dimension.low)}..{float(dimension.high)}"
            )
    return notes
