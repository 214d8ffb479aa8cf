"""Result of a trial, and how it is read from its run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from mt_core import MtError

from .pruning import Figures, figure
from .space import Value, option_text

State = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial, counted from 1. ``value`` is the figure at its last evaluation, ``run`` its folder within the search's."""

    number: int
    state: State
    values: Mapping[str, Value]
    run: str = ""
    value: float | None = None
    evaluations: Mapping[int, float] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as they are written, which tells 1, 1.0 and true apart."""
        return tuple(map(option_text, self.values.values()))

    @property
    def last(self) -> float | None:
        """The figure in the end, or as far as the trial came."""
        return self.value if self.value is not None else next(reversed([*self.evaluations.values()]), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the trial for JSON, which has no word for a figure that is no number."""
        evaluations = {step: figure if isfinite(figure) else None for step, figure in self.evaluations.items()}
        return {**self.__dict__, "values": dict(self.values), "evaluations": evaluations}


@dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """Figures that the run of a trial left: its figure in the end and at each evaluation, and how far it came."""

    value: float | None
    evaluations: Figures
    steps: int
    total_steps: int


def read_run(folder: Path, metric: str) -> TrialFigures:
    """Read ``metrics.jsonl`` of a run that has ended. Raises ``MtError`` where it lacks the figure."""
    try:
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        total_steps = int(json.loads((folder / "about.json").read_text("utf-8"))["total_steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MtError(f"{folder} ended without figures that can be read: {error}") from error
    evaluated = [record for record in records if any(name.startswith("eval_") for name in record)]
    # some figures come at every n-th evaluation alone
    evaluated = [record for record in evaluated if metric in record] or evaluated
    source = evaluated if metric.startswith("eval_") else records
    value = figure(source[-1] if source else {}, metric)
    figures = {int(record["step"]): figure(record, metric) for record in evaluated}
    return TrialFigures(
        value=value if isfinite(value) else None,
        evaluations=figures,
        steps=int(records[-1]["step"]),
        total_steps=total_steps,
    )
