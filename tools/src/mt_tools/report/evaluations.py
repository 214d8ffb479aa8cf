"""``evaluations.jsonl``: what each evaluation of a run found when it was last asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt_tools.report.curves import to_number
from mt_tools.report.files import lines_of
from mt_tools.report.predictions import shorten

MAX_GROUPS = 500
"""Groups of one evaluation that the page shows."""


@dataclass(frozen=True, kw_only=True)
class NewestFindings:
    """Findings of one evaluation after a step. ``seconds`` and ``requests`` are what they took, where the line says so."""

    step: int
    figures: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]]
    signatures: Mapping[str, str]
    notes: tuple[str, ...]
    seconds: float | None
    requests: float | None


@dataclass
class Evaluations:
    """The newest findings of each evaluation, by its name."""

    newest: dict[str, NewestFindings] = field(default_factory=dict)
    unread: int = 0

    def add(self, line: str) -> None:
        """Take in the next line of the file."""
        try:
            content = json.loads(line)
            name, asked = shorten(content["evaluation"]), _newest_findings(content)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self.unread += 1
            return
        if name not in self.newest or asked.step >= self.newest[name].step:
            self.newest[name] = asked

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the page has to know about the findings."""
        for name, asked in self.newest.items():
            if (more := len(asked.groups) - MAX_GROUPS) > 0:
                yield f"{more:,} group(s) of {name} are not shown; evaluations.jsonl has all"
        if self.unread:
            yield f"{self.unread:,} line(s) of evaluations.jsonl are no findings and were left out"


def read_evaluations(path: Path) -> Evaluations:
    """Read a file; one that is missing is empty."""
    found = Evaluations()
    for line in lines_of(path):
        found.add(line)
    return found


def _newest_findings(content: Mapping[str, Any]) -> NewestFindings:
    groups, notes = content.get("groups") or {}, content.get("notes") or []
    if not isinstance(notes, list):
        raise TypeError("notes are a list of texts")
    return NewestFindings(
        step=int(content["step"]),
        figures=_figures(content["figures"]),
        groups={shorten(name): _figures(figures) for name, figures in groups.items()},
        signatures={shorten(name): shorten(text) for name, text in (content.get("signatures") or {}).items()},
        notes=tuple(shorten(text) for text in notes),
        seconds=to_number(content["seconds"]) if "seconds" in content else None,
        requests=to_number(content["requests"]) if "requests" in content else None,
    )


def _figures(content: Mapping[str, Any]) -> dict[str, float]:
    numbers = {shorten(name): to_number(value) for name, value in content.items()}
    return {name: value for name, value in numbers.items() if value is not None}
