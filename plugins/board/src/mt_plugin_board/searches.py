"""The trials of a search as a table."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mt_core import UsageError
from mt_tools.report import read_plain
from mt_train.command import read_config

from .scan import SEARCH

TABLE = "trials.csv"
MOST_TRIALS = 5000
MOST_LETTERS = 300
LONGEST_CELL = 131_072
"""Letters of a cell beyond which its line is damage: the limit of ``csv``, which a dataset in the same process may have raised."""
OF_EVERY_TRIAL = ("trial", "state", "steps", "seconds", "run", "error")


def read_search(folder: Path, identifier: str) -> dict[str, Any]:
    """Return columns and trials of a search, those with a link to their run, and remarks. Raises ``OSError`` where it cannot be read."""
    head, trials, remarks = _read_table(read_plain(folder / TABLE) or "")
    metric = head[2] if len(head) > 2 else ""
    better = _better(folder)
    _mark_best(trials, metric, better)
    return {
        "id": identifier,
        "metric": metric,
        "better": 1 if better is max else -1,
        "keys": [key for key in head if key not in OF_EVERY_TRIAL and key != metric],
        "trials": [
            trial | {"id": f"{identifier}/{trial.get('run') or 'trial ' + trial.get('trial', '')}"} for trial in trials
        ],
        "remarks": remarks,
    }


def _read_table(text: str) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Return the columns and the rows of a table of trials, and what a reader of the page has to know about it."""
    rows: list[list[str]] = []
    damaged = 0
    reader = csv.reader(io.StringIO(text, newline=""))
    while len(rows) <= MOST_TRIALS + 1:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error:
            damaged += 1
            continue
        if not cells:
            continue
        if (rows and len(cells) != len(rows[0])) or max(map(len, cells)) > LONGEST_CELL:
            damaged += 1
        else:
            rows.append([cell[:MOST_LETTERS] for cell in cells])
    head = rows[0] if rows else []
    if text and "trial" not in head:
        return [], [], [f"{TABLE} is no table of trials: its first line has no column named trial"]
    remarks = [f"{damaged:,} line(s) of {TABLE} are no trial and were left out"] if damaged else []
    if len(rows) > MOST_TRIALS + 1:
        remarks.append(f"no more than {MOST_TRIALS:,} trials are shown; {TABLE} has all")
    return head, [dict(zip(head, row, strict=True)) for row in rows[1 : MOST_TRIALS + 1]], remarks


def _better(folder: Path) -> Callable[[list[float]], float]:
    """Return which of several figures is best by the search's own word; the least where it says nothing."""
    try:
        wanted = str(read_config(folder / SEARCH).get("metric", ""))
    except UsageError:
        wanted = ""
    return max if wanted.endswith(":max") else min


def _mark_best(trials: list[dict[str, Any]], metric: str, better: Callable[[list[float]], float]) -> None:
    figures = {
        place: _figure(trial.get(metric, "")) for place, trial in enumerate(trials) if trial.get("state") == "complete"
    }
    known = [figure for figure in figures.values() if figure is not None]
    for place, figure in figures.items():
        if known and figure == better(known):
            trials[place]["best"] = True
            return


def _figure(text: str) -> float | None:
    try:
        figure = float(text)
    except ValueError:
        return None
    return figure if math.isfinite(figure) else None


def stamp(folder: Path) -> tuple[int, int] | None:
    """Return what changes when the table does."""
    try:
        status = os.lstat(folder / TABLE)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
