"""The valid layout that is nearest to one that is refused: a search that asks the validator, and knows none of its rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal, get_args, get_origin

from mt_train.config.run import RunConfig

Works = Callable[[RunConfig, int], bool]
"""(config, number of ranks) -> whether the validator accepts them."""

KEYS = (
    "train.compile",
    "parallel.masters",
    "parallel.zero_stage",
    "parallel.offload",
    "parallel.sequence",
    "parallel.expert",
    "parallel.pipeline",
    "train.micro_batch_size",
    "train.global_batch_size",
    "train.dtype",
)
"""Keys that a suggestion may change. Of two that are equally near, the one whose keys come first here is taken: the later ones
change what is computed, the first only where."""

NEIGHBOURS = (6, 6, 6, 2)
"""Values of a number that are tried for 1, 2, 3 and more keys at a time: those nearest to its own, and 1, by which
everything divides. Four keys of a thousand ranks would take five seconds otherwise."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """``changes`` (key → value) make the layout valid on its ranks; as it is, it would be valid on ``ranks`` of them."""

    changes: Mapping[str, Any] | None
    ranks: int | None

    def __str__(self) -> str:
        """Format for people: ``--parallel.sequence 2, or 4 processes with all keys as they are``; empty where nothing helps."""
        words = []
        if self.changes:
            words.append(" ".join(f"--{key.replace('_', '-')} {_format(value)}" for key, value in self.changes.items()))
        if self.ranks:
            words.append(f"{self.ranks} {'process' if self.ranks == 1 else 'processes'} with all keys as they are")
        return ", or ".join(words)


def suggest_layout(config: RunConfig, world: int, works: Works) -> Suggestion:
    """The fewest keys to change, and among those sets the smallest change; and the nearest number of ranks."""
    return Suggestion(changes=nearest_layout(config, world, works), ranks=nearest_world(config, world, works))


def nearest_layout(config: RunConfig, world: int, works: Works) -> dict[str, Any] | None:
    """``None`` when no change of ``KEYS`` makes a valid layout."""
    for count in range(1, len(KEYS) + 1):
        found = [
            (sum(_distance(_value(config, key), value) for key, value in changes.items()), changes)
            for keys in combinations(KEYS, count)
            for changes in _changes(config, world, keys)
            if works(with_changes(config, changes), world)
        ]
        if found:
            return min(found, key=lambda each: each[0])[1]
    return None


def nearest_world(config: RunConfig, world: int, works: Works) -> int | None:
    """``None`` when no number of ranks up to twice as many, or as many as the layout names, is valid."""
    parallel = config.parallel
    most = max(2 * world, parallel.pipeline * math.lcm(parallel.sequence, parallel.expert))
    return next((n for n in sorted(range(1, most + 1), key=lambda n: _distance(world, n)) if works(config, n)), None)


def with_changes(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The config with other values for some dotted keys."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    )


def _changes(config: RunConfig, world: int, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every way to give all of these keys other values."""
    others = [key for key in keys if key != "train.global_batch_size"]
    for values in product(
        *(_alternatives(config, world, key, NEIGHBOURS[min(len(keys), len(NEIGHBOURS)) - 1]) for key in others)
    ):
        changes = dict(zip(others, values, strict=True))
        if len(others) == len(keys):
            yield changes
        else:
            yield from ({**changes, "train.global_batch_size": rows} for rows in _batches(config, world, changes))


def _alternatives(config: RunConfig, world: int, key: str, most: int) -> list[Any]:
    """Values that a key might take instead of its own; of a number's, the ``most`` nearest."""
    own = _value(config, key)
    if (key, own) in (("parallel.expert", 1), ("parallel.masters", "auto")):
        return []  # to divide experts, or to ask for DeepSpeed's masters, mends nothing
    section, _, name = key.partition(".")
    field = type(getattr(config, section)).model_fields[name]
    if isinstance(own, bool):
        return [not own]
    if get_origin(field.annotation) is Literal:
        return [choice for choice in get_args(field.annotation) if choice != own]
    total = config.train.global_batch_size or 1 if key == "train.micro_batch_size" else world
    near = sorted((n for n in _divisors(total) if n != own), key=lambda n: _distance(own, n))
    return list(dict.fromkeys([*near[:most], *(n for n in near if n == 1)]))


def _batches(config: RunConfig, world: int, changes: Mapping[str, Any]) -> list[int]:
    """Multiples of the rows that all ranks compute at a time, below and above what a step has."""
    total = config.train.global_batch_size
    if total is None:
        return []
    size, *shared = (
        changes.get(key, _value(config, key))
        for key in ("train.micro_batch_size", "parallel.pipeline", "parallel.sequence")
    )
    rows = (1 if size == "auto" else size) * max(1, world // math.prod(shared))
    return [n for n in (total // rows * rows, -(-total // rows) * rows) if n and n != total]


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _value(config: RunConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _distance(old: Any, new: Any) -> float:
    """Doublings between two numbers; 1 between two names."""
    numbers = all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in (old, new))
    return abs(math.log2(new / old)) if numbers else 1.0


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
