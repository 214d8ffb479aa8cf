"""``eval/NNN/metrics.json``: what ``mt-eval`` has found of the checkpoints of a run, each time that it was called."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt_tools.report.curves import to_number
from mt_tools.report.files import read_plain
from mt_tools.report.predictions import shorten

MOST = 100
"""Calls of ``mt-eval`` that are read, the newest ones."""
_NO_FIGURES = frozenset({"step", "seconds", "requests"})


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures:
    """Figures of one checkpoint: ``on`` rows, or of an evaluation. ``call`` is the folder that has them."""

    on: str
    model: str
    call: str
    figures: Mapping[str, float]


def calls_of_eval(folder: Path) -> list[Path]:
    """Return the files that ``mt-eval`` wrote into a run's folder, the newest call first."""
    base = folder / "eval"
    try:
        if base.is_symlink():
            return []
        with os.scandir(base) as entries:
            names = [each.name for each in entries if each.name.isdecimal() and each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [base / name / "metrics.json" for name in sorted(names, key=int, reverse=True)[:MOST]]


def read_checkpoint_evaluations(folder: Path, remarks: list[str]) -> tuple[CheckpointFigures, ...]:
    """Return the newest figures of each checkpoint on each set of rows and of each evaluation, in the order of steps.

    A file that cannot be read is a remark.
    """
    newest: dict[tuple[str, str], tuple[float, CheckpointFigures]] = {}
    for path in calls_of_eval(folder):
        call = f"eval/{path.parent.name}"
        try:
            if (text := read_plain(path)) is None:
                continue
            for step, found in _results(json.loads(text), call):
                newest.setdefault((found.on, found.model), (step, found))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            remarks.append(f"{call}/metrics.json cannot be read and was left out: {shorten(error)}")
    return tuple(found for _, found in sorted(newest.values(), key=lambda each: each[0]))


def _results(content: Mapping[str, Any], call: str) -> Iterator[tuple[float, CheckpointFigures]]:
    for result in content["results"]:
        asked = "evaluation" in result
        named = {shorten(name): to_number(each) for name, each in (result["figures"] if asked else result).items()}
        figures = {name: each for name, each in named.items() if each is not None and name not in _NO_FIGURES}
        on = shorten(result["evaluation" if asked else "dataset"])
        yield (
            to_number(result.get("step")) or 0.0,
            CheckpointFigures(on=on, model=shorten(result["model"]), call=call, figures=figures),
        )
