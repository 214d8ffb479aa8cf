"""The part of the page with the figures of checkpoints that ``mt-eval`` has found."""

from __future__ import annotations

from collections.abc import Sequence

from mt_tools.report.markup import Markup, element, join, table
from mt_tools.report.run import Run
from mt_tools.report.sections import section
from mt_tools.report.summary import number


def checkpoint_tables(runs: Sequence[Run]) -> Markup:
    """Show a table for each set of rows and each evaluation: a line for each checkpoint, of all runs."""
    names = dict.fromkeys(each.on for run in runs for each in run.checkpoint_evaluations)
    return section("checkpoint-evaluations", "Checkpoints (mt-eval)", *(_table(runs, name) for name in names))


def _table(runs: Sequence[Run], name: str) -> Markup:
    found = [(run, each) for run in runs for each in run.checkpoint_evaluations if each.on == name]
    figures = list(dict.fromkeys(figure for _, each in found for figure in each.figures))
    rows = [
        [
            f"{run.name} {each.model}" if len(runs) > 1 else each.model,
            *("–" if (value := each.figures.get(figure)) is None else number(value) for figure in figures),
            each.call,
        ]
        for run, each in found
    ]
    return join(element("h3", name), table(["Checkpoint", *figures, "in"], rows, numbers=len(figures)))
