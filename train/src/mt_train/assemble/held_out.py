"""Figures of the held-out rows: over all of them, and the loss of each source of a mixed dataset."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from mt_train.data.loader import HeldOut
from mt_train.data.samples import EncodedSamples
from mt_train.engine.coupling import couples
from mt_train.engine.engine import Engine
from mt_train.tracking.logs import first_notice

MOST_SOURCES = 64
"""Sources that have a figure of their own; each has at least one batch of its own on every rank."""
_UNFIT = re.compile(r"[^a-z0-9]+")
_LAST_WORD = re.compile(r"[^\s/\\]+\s*$")


def evaluate_held_out(engine: Engine, held_out: HeldOut, stop: Callable[[], bool]) -> dict[str, float] | None:
    """Return ``eval_loss`` and the metrics over all held-out rows, and ``eval_loss_SOURCE`` of each source of a mix. Collective.

    Each row is read once. ``None`` when some rank wanted to stop before the end.
    """
    numbers = {} if couples(held_out.objective) else numbers_by_source(held_out.samples)
    if not numbers:
        return engine.evaluate(held_out.batches(), stop)
    found = {}
    with engine.use_averaged_weights():
        for name, own in numbers.items():
            sums = engine.sums_of(held_out.part_of(own).batches(), stop)
            if sums is None:
                return None
            found[name] = sums
    figures = engine.figures_of(torch.stack([*found.values()]).sum(0))
    return figures | {f"eval_loss_{name}": engine.figures_of(sums)["eval_loss"] for name, sums in found.items()}


def numbers_by_source(
    samples: EncodedSamples, rows: str = "held-out", figure: str = "eval_loss"
) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of the samples of each source, by the source's part of a figure's name; nothing where there is but one."""
    places: defaultdict[str, list[NDArray[np.int64]]] = defaultdict(list)
    begin = 0
    for name, count in samples.report.source_samples:
        places[name].append(np.arange(begin, begin + count))
        begin += count
    if len(places) < 2 or begin != len(samples):
        return {}
    if len(places) > MOST_SOURCES:
        first_notice(
            f"notice: the {rows} rows are of {len(places)} sources, and up to {MOST_SOURCES} have a loss of their own; {figure} is of"
            " all together"
        )
        return {}
    names = figure_names([*places])
    return {names[name]: np.concatenate(own) for name, own in places.items()}


def figure_names(sources: list[str]) -> Mapping[str, str]:
    """Return for each source what it is called in a figure: the last word of its name, the whole of it where two have one, with a number
    where that is not enough."""
    ends = {name: _slug(found[0]) if (found := _LAST_WORD.search(name)) else "" for name in sources}
    names: dict[str, str] = {}
    for number, name in enumerate(sources):
        short = ends[name] if list(ends.values()).count(ends[name]) == 1 else _slug(name)
        taken = not short or short in names.values()
        names[name] = f"{short}_{number}".strip("_") if taken else short
    return names


def _slug(text: str) -> str:
    return _UNFIT.sub("_", text.lower()).strip("_")
