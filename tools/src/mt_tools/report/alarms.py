"""``alarms.jsonl``: what was amiss in a run, each thing once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mt_tools.report.files import lines_of
from mt_tools.report.predictions import shorten

MAX_ALARMS = 50
"""Alarms that the page shows."""


@dataclass
class Alarms:
    """The first alarms, as sentences."""

    texts: list[str] = field(default_factory=list)
    left_out: int = 0
    unread: int = 0

    def add(self, line: str) -> None:
        """Take in the next line of the file."""
        try:
            content = json.loads(line)
            text = f"step {int(content['step']):,}: {shorten(content['alarm'])}: {shorten(content['text'])}"
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self.unread += 1
            return
        if len(self.texts) < MAX_ALARMS:
            self.texts.append(text)
        else:
            self.left_out += 1

    def remarks(self) -> Iterator[str]:
        """Yield the alarms, and what a reader of the page has to know about them."""
        yield from self.texts
        if self.left_out:
            yield f"{self.left_out:,} further alarm(s) are not shown; alarms.jsonl has all"
        if self.unread:
            yield f"{self.unread:,} line(s) of alarms.jsonl are no alarm and were left out"


def read_alarms(path: Path) -> Alarms:
    """Read a file; one that is missing is empty."""
    found = Alarms()
    for line in lines_of(path):
        found.add(line)
    return found
