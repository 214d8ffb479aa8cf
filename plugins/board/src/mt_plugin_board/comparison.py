"""Several runs in figures: each when it had seen as many tokens as the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mt_tools.report import Markup, Run, Series, element, number, section, table

SHARES = (0.25, 0.5, 0.75, 1.0)
MEAN_OF = 50
"""Steps whose mean the training loss is."""


def equal_tokens(runs: Sequence[Run]) -> Markup:
    """A table of losses at the same numbers of tokens, up to where the shortest run is; nothing for one run."""
    seen = [series.last[1] for run in runs if (series := run.curves["tokens"]).last is not None]
    if len(runs) < 2 or len(seen) < len(runs) or min(seen) <= 0:
        return Markup("")
    rows = [row for share in SHARES for row in _rows(runs, share * min(seen))]
    note = f"The training loss is the mean of the {MEAN_OF} steps before; the evaluation's is the last one before."
    return section(
        "tokens",
        "At equal tokens",
        table(["Tokens", "figure", *(run.name for run in runs)], rows),
        element("p", note, class_="detail"),
    )


def _rows(runs: Sequence[Run], tokens: float) -> Iterator[list[str]]:
    steps = [step_at(run.curves["tokens"], tokens) for run in runs]
    for key, title in (("loss", "training loss"), ("eval_loss", "evaluation loss"), ("reward", "reward")):
        values = [
            value_before(run.curves[key], step, MEAN_OF if key != "eval_loss" else None)
            for run, step in zip(runs, steps, strict=True)
        ]
        if any(value is not None for value in values):
            yield [f"{tokens:,.0f}", title, *("–" if value is None else number(value) for value in values)]


def step_at(tokens: Series, wanted: float) -> int:
    """Return the first step after which a run had seen so many tokens; of a long run as exact as its groups are."""
    found = 0
    for group in tokens.groups():
        found = group.last
        if group.count and group.high >= wanted:
            steps, rise = group.last - group.first, group.high - group.low
            return (
                group.last
                if not steps or rise <= 0
                else group.first + round(steps * max(0.0, wanted - group.low) / rise)
            )
    return found


def value_before(series: Series, step: int, mean_of: int | None) -> float | None:
    """Return the last value up to a step, or the mean of so many steps up to it."""
    groups = [group for group in series.groups() if group.count and group.first <= step]
    if not groups:
        return None
    if mean_of is None:
        return groups[-1].mean
    near = [group for group in groups if group.last > step - mean_of] or groups[-1:]
    return sum(group.total for group in near) / sum(group.count for group in near)
