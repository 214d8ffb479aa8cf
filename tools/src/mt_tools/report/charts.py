"""Charts of the page, their data, and what stands there without a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mt_tools.report.markup import Markup, element, table
from mt_tools.report.run import Run
from mt_tools.report.series import Series
from mt_tools.report.summary import number
from mt_train.tracking.plot import SMOOTHING


@dataclass(frozen=True)
class Chart:
    """One picture. ``held_out`` is the key that is drawn over it with points; ``zero`` makes its axis start there."""

    key: str
    title: str
    unit: str = ""
    held_out: str = ""
    zero: bool = False
    smooth: bool = True


KNOWN = (
    Chart("lr", "Learning rate", zero=True, smooth=False),
    Chart("grad_norm", "Gradient norm", "before clipping", zero=True),
    Chart("tokens_per_second", "Throughput", "tokens per second", zero=True),
    Chart("memory_gib", "Memory", "GiB, peak of one process", zero=True, smooth=False),
    Chart("data_wait_seconds", "Data wait", "seconds a step", zero=True),
)
"""The keys that every run has beside the loss (``protocols.StepRecord``); what else is found is drawn after them."""

NOT_DRAWN = frozenset({"step", "tokens"})


def charts(runs: Sequence[Run]) -> list[Chart]:
    """A chart for every figure that any of the runs has; ``eval_x`` is drawn with ``x`` where there is an ``x``."""
    found = dict.fromkeys(key for run in runs for key in run.curves.series if key not in NOT_DRAWN)
    loss = Chart("loss", "Loss", _loss_unit(runs), held_out="eval_loss")
    known = [chart for chart in (loss, *KNOWN) if chart.key in found or chart.held_out in found]
    taken = {key for chart in known for key in (chart.key, chart.held_out)}
    others = [key for key in found if key not in taken]
    return [*known, *(_other_chart(key, found) for key in others if not _belongs_to_another(key, found))]


def _loss_unit(runs: Sequence[Run]) -> str:
    """Return the unit of the losses of all runs; nothing where they differ."""
    units = {run.loss_unit for run in runs}
    return units.pop() if len(units) == 1 else ""


def _belongs_to_another(key: str, found: dict[str, None]) -> bool:
    return key.startswith("eval_") and key.removeprefix("eval_") in found


def _other_chart(key: str, found: dict[str, None]) -> Chart:
    if key.startswith("eval_"):
        return Chart(key, _title(key.removeprefix("eval_")), "in evaluation", held_out=key)
    return Chart(key, _title(key), held_out=f"eval_{key}" if f"eval_{key}" in found else "")


def _title(key: str) -> str:
    words = key.replace("_", " ").strip() or key
    return words[:1].upper() + words[1:]


def chart_data(runs: Sequence[Run], drawn: Sequence[Chart]) -> dict[str, Any]:
    """Return what the script needs. ``average_over`` is in steps, and averages as ``loss.png`` does."""
    keys = {key for chart in drawn for key in (chart.key, chart.held_out) if key}
    return {
        "average_over": round(1 / (1 - SMOOTHING)),
        "charts": [{key: value for key, value in asdict(chart).items() if value != ""} for chart in drawn],
        "runs": [
            {
                "name": run.name,
                "axes": {"tokens": run.curves["tokens"].corners(), "time": run.curves.seconds.corners()},
                "series": {key: series.data() for key, series in run.curves.series.items() if key in keys},
            }
            for run in runs
        ],
    }


def figures(runs: Sequence[Run], drawn: Sequence[Chart]) -> Iterator[Markup]:
    """The frames that the script fills, each with a table for readers without one."""
    for chart in drawn:
        unit = element("span", f" {chart.unit}", class_="unit") if chart.unit else Markup("")
        caption = element("figcaption", element("h3", chart.title), unit)
        plot = element("div", class_="plot")
        rows = [row for run in runs for row in _rows(run, chart)]
        plain = table(["Run", "first", "middle", "last", "lowest", "highest"], rows, numbers=5)
        wide = " wide" if chart.key == "loss" else ""
        yield element(
            "figure", caption, plot, element("noscript", plain), class_=f"chart card{wide}", data_key=chart.key
        )


def _rows(run: Run, chart: Chart) -> Iterator[list[str]]:
    for key in dict.fromkeys((chart.key, chart.held_out)):
        if key in run.curves.series:
            words = " (evaluation)" if key == chart.held_out else ""
            yield [run.name + words, *_cells(run.curves[key])]


def _cells(series: Series) -> list[str]:
    groups = [(group.first, group.mean) for group in series.groups() if group.mean is not None]
    if not groups:
        return ["–"] * 5
    chosen = [groups[0], groups[len(groups) // 2], series.last or groups[-1]]
    extremes = [point for point in (series.lowest, series.highest) if point is not None]
    return [f"{number(value)} (step {step:,})" for step, value in [*chosen, *extremes]]
