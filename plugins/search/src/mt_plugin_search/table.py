"""Table of what a search found, for people and as JSON."""

from __future__ import annotations

import json
import shutil
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mt_train.command import drawing_stream, duration, escape_controls

from .searching import SearchResult
from .space import option_text
from .trials import Trial

SCHEMA = 1
_STYLES = {"failed": "red", "pruned": "dim", "running": "yellow"}
_WORDS = {"pruned": "ended early", "running": "stopped"}


def show_found(found: SearchResult) -> None:
    """A table of the trials, the best marked; colours only where standard output is a terminal."""
    wide = None if sys.stdout.isatty() else max(shutil.get_terminal_size().columns, 200)
    console = Console(highlight=False, width=wide, file=drawing_stream(sys.stdout))
    console.print(_table(found))


def _table(found: SearchResult) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    keys = list(found.trials[0].values) if found.trials else []
    for name in (
        "trial",
        "",
        found.metric,
        *(key.removesuffix(".name").replace("_", "-") for key in keys),
        "steps",
        "time",
    ):
        table.add_column(escape_controls(name), justify="left" if name == "" else "right", overflow="fold")
    for trial in found.trials:
        best = found.best is not None and trial.number == found.best.number
        style = "bold green" if best else _STYLES.get(trial.state, "")
        table.add_row(*_cells(trial, keys, best), style=style)
    return table


def _cells(trial: Trial, keys: list[str], best: bool) -> list[str]:
    figure = trial.last
    values = [_shorten(trial.values[key]) if key in trial.values else "" for key in keys]
    word = "best" if best else _WORDS.get(trial.state, "" if trial.state == "complete" else trial.state)
    return [
        str(trial.number),
        word,
        "" if figure is None else f"{figure:.4f}",
        *values,
        str(trial.steps),
        duration(trial.seconds),
    ]


def _shorten(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape_controls(option_text(value))


def as_json(found: SearchResult) -> str:
    """Everything, for programs."""
    best = None if found.best is None else found.best.number
    about = {
        "schema": SCHEMA,
        "output": str(found.output),
        "metric": found.metric,
        "best": best,
        "stopped": found.stopped,
    }
    return json.dumps({**about, "trials": [trial.as_dict() for trial in found.trials]}, indent=1, allow_nan=False)
