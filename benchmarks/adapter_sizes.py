"""The options with which an adapter trains as many numbers as LoRA of rank 8, found from its config by counting.

Tried are all ranks of a config together, in proportion, every whole-number option alone, and two of them where that does not
come near. No adapter is known by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adapters"))

import torch
from adapter_page import NEAR
from catalogue import WHOLE, components, small_options
from learning import Task, frozen_base, option_of, parts_for, probe_of_rows
from torch import Tensor

from mt_core import Adapter, MtError

RANK = 8
"""LoRA's, after which the others are sized."""
CLOSE = 0.02
"""And how far one way of sizing is no worse than another: the earlier one is taken."""
SIZES = (*range(1, 33), *range(36, 65, 4), *range(72, 129, 8), *range(144, 257, 16))
SMALL = 20
"""Sizes that are tried, and how far where two are changed at once."""
_NO_SIZE = ("steps", "seed")
"""What the names of whole-number options end in that are times or draws, not sizes."""

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Size:
    """Options beside the defaults, and how many numbers are trained with them."""

    options: Options
    trained: int

    def is_near(self, wanted: int) -> bool:
        """Return whether it counts as equal."""
        return abs(self.trained - wanted) <= NEAR * wanted


def size_of(task: Task, name: str, wanted: int) -> Size:
    """The defaults where these come near; else the nearest along one size, along two where one alone does not come near, and
    down to 1 of what is no rank (one block, one factor or one expert is often another method) where that does not, either."""
    count = counter(task, name)
    start = _start(name, count)
    found = [Size(start, count(start))]
    for family in (ways(name, start), ways_along_two(name, start), ways(name, start, least=1)):
        if not any(each.is_near(wanted) for each in found):
            found += [each for way in family for each in _nearest(way, count, wanted)]
    least = min(abs(each.trained - wanted) for each in found)
    return next(each for each in found if abs(each.trained - wanted) <= least + CLOSE * wanted)


def ways(name: str, start: Options, least: int = 2) -> Iterator[Iterator[Options]]:
    """Families of options, each along one size: all ranks together, then every whole number alone."""
    defaults = {**_defaults(name), **start}
    sizes = _sizes(name, defaults)
    ranks = {key: value for key, value in sizes.items() if _is_rank(key)}
    for group in [ranks] * (len(ranks) > 1) + [{key: value} for key, value in sizes.items()]:
        yield (
            {**start, **_scale(group, size, defaults)} for size in SIZES if size >= least or _is_rank(next(iter(group)))
        )


def ways_along_two(name: str, start: Options) -> Iterator[Iterator[Options]]:
    """Families along two whole numbers at once, those near the defaults first."""
    defaults = {**_defaults(name), **start}
    for one, other in combinations(_sizes(name, defaults).items(), 2):
        pairs = product(*(range(1 if _is_rank(key) else 2, SMALL + 1) for key, _ in (one, other)))
        near = sorted(pairs, key=lambda pair: sum(abs(log(a / b[1])) for a, b in zip(pair, (one, other), strict=True)))
        yield (
            {**start, **_scale(dict([one]), pair[0], defaults), **_scale(dict([other]), pair[1], defaults)}
            for pair in near
        )


def _nearest(way: Iterator[Options], count: Callable[[Options], int], wanted: int) -> list[Size]:
    """The first of the nearest in a family; none where the family has no size that can be built."""
    tried = (Size(options, trained) for options in way if (trained := count_or_zero(count, options)))
    return sorted(tried, key=lambda each: abs(each.trained - wanted))[:1]


def counter(task: Task, name: str) -> Callable[[Options], int]:
    """Options → numbers that are trained, with the ranks that rows of the run give, where they give ranks."""
    component, parts = components()[name], parts_for(task, WHOLE, {}, 0)
    probe: list[_OnceProbe] = []

    def count(options: Options) -> int:
        adapter: Adapter = component.build(component.config(**options))
        if type(adapter).prepare is not Adapter.prepare:
            base = frozen_base(task, parts)
            probe.extend([] if probe else [_OnceProbe(probe_of_rows(task, base, 0))])
            adapter.prepare(base, probe[0])
        with torch.device("meta"):
            model = parts.model()
            adapter.inject(model)
        parameters, trained = dict(model.named_parameters()), adapter.trainable_parameters(model)
        return sum(parameters[key].numel() for key in trained)

    return count


def count_or_zero(count: Callable[[Options], int], options: Options) -> int:
    """0 where there is no such size."""
    try:
        return count(options)
    except (MtError, ValueError):
        return 0


def _start(name: str, count: Callable[[Options], int]) -> Options:
    """What an adapter says of runs of this length; what a small model needs besides, where it has no other way to begin."""
    said = dict(option_of(name, "options", {}))
    return said if count_or_zero(count, said) else {**small_options(name), **said}


def _defaults(name: str) -> dict[str, Any]:
    return {key: field.default for key, field in components()[name].config.model_fields.items()}


def _sizes(name: str, defaults: Options) -> dict[str, int]:
    """The whole numbers of a config that say how large something is, as they are; 1 where they say nothing."""
    fields = components()[name].config.model_fields
    whole = [key for key, field in fields.items() if field.annotation in (int, int | None)]
    return {key: defaults[key] or 1 for key in whole if key.rpartition("_")[2] not in _NO_SIZE}


def _is_rank(key: str) -> bool:
    return "rank" in key.split("_")


def _scale(group: Options, size: int, defaults: Options) -> dict[str, Any]:
    """The first of a group at this size, the others in proportion, and alpha with the rank, so that the scale stays."""
    first = next(iter(group))
    share = size / group[first]
    scaled: dict[str, Any] = {key: max(1, round(value * share)) for key, value in group.items()}
    if first == "rank" and "alpha" in defaults:
        scaled["alpha"] = defaults["alpha"] * share
    return {key: value for key, value in scaled.items() if value != defaults[key]}


class _OnceProbe:
    """A probe that looks once: base and rows are the same for all sizes."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self._found: dict[tuple[Any, ...], dict[str, Tensor]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self._probe, name)  # type: ignore[no-any-return]

    def gradients(self, names: Any, *, steps: int) -> dict[str, Tensor]:
        return self._once("gradients", names, steps)

    def input_moments(self, modules: Any, *, steps: int) -> dict[str, Tensor]:
        return self._once("input_moments", modules, steps)

    def _once(self, what: str, names: Any, steps: int) -> dict[str, Tensor]:
        key = (what, tuple(names), steps)
        if key not in self._found:
            self._found[key] = getattr(self._probe, what)(names, steps=steps)
        return {name: each.clone() for name, each in self._found[key].items()}
