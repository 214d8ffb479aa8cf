"""Pictures of a run: its losses (raw, smoothed, evaluation), and the learning rates that are planned."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

from mt_core.files.writing import replace_file
from mt_core.protocols import NATS_PER_TOKEN

SMOOTHING = 0.9
"""Weight of the past in the exponential moving average, which is corrected for its start as Adam's is."""


def smooth(values: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Exponential moving average with bias correction (https://arxiv.org/abs/1412.6980, section 3)."""
    average, out = 0.0, []
    for count, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        out.append(average / (1 - weight**count))
    return out


MANY_POINTS = 10_000
"""From so many on the legend has a fixed place: matplotlib would look for a free one among all of them, and warn that it does."""


def plot_losses(records: Iterable[Mapping[str, Any]], path: Path, *, unit: str = NATS_PER_TOKEN) -> None:
    """Write a PNG of the records of ``metrics.jsonl``; without a single loss nothing is written."""
    trained, held_out = (array("q"), array("d")), (array("q"), array("d"))
    for record in records:
        for key, (steps, values) in (("loss", trained), ("eval_loss", held_out)):
            if record.get(key) is not None:
                steps.append(record["step"])
                values.append(record[key])
    steps, losses = trained
    if not losses:
        return
    figure, axes = _figure(None)  # the layout of text is most of the time of a picture, and every run draws this one
    figure.subplots_adjust(left=0.11, right=0.985, bottom=0.11, top=0.97)
    axes.plot(steps, losses, color="#9bb8d9", linewidth=1, label="training, each step")
    axes.plot(steps, smooth(losses), color="#1f4e8c", linewidth=2, label=f"training, moving average ({SMOOTHING:g})")
    if held_out[1]:
        axes.plot(*held_out, "o-", color="#c8553d", markersize=5, label="held out")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"loss ({unit})" if unit else "loss")
    axes.legend(frameon=False, loc="best" if len(losses) < MANY_POINTS else "upper right")
    _save(figure, path)


SHOWN_GROUPS = 8
"""Rates that the legend of a plan names, the highest first."""


def plot_rates(
    updates: Sequence[int], factors: Sequence[float], groups: Mapping[str, float], path: Path, title: str
) -> None:
    """Write a PNG of what a schedule makes of each group's base rate: groups of one rate are one line.

    ``factors`` are those of ``updates``, counted from 1. Marked are the way to the first peak, and the rate of the last update.
    """
    import matplotlib

    figure, axes = _figure()
    named: dict[float, list[str]] = {}
    for name, rate in groups.items():
        named.setdefault(rate, []).append(name)
    colors = matplotlib.colormaps["viridis"]
    for number, (rate, names) in enumerate(sorted(named.items(), reverse=True)):
        label = f"{rate:.3g}: {shorten(', '.join(names), 52, placeholder=' …')}" if number < SHOWN_GROUPS else None
        color = colors(0.85 * number / max(1, len(named) - 1)) if len(named) > 1 else "#1f4e8c"
        axes.plot(updates, [rate * factor for factor in factors], color=color, linewidth=2, label=label)
    top, peak = max(named), factors.index(max(factors))
    if peak:
        count = updates[peak] - updates[0]
        axes.axvspan(
            updates[0], updates[peak], color="#e9c46a", alpha=0.25, linewidth=0, label=f"warm-up: {count:,} updates"
        )
    last = f"last update: {top * factors[-1]:.3g} ({100 * factors[-1]:.3g} % of the base rate)"
    axes.axhline(top * factors[-1], color="#c8553d", linestyle="--", linewidth=1, label=last)
    axes.set_title(title)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("learning rate")
    axes.set_ylim(0, 1.05 * top * max(factors))
    if len(named) > SHOWN_GROUPS:
        axes.plot([], [], " ", label=f"and {len(named) - SHOWN_GROUPS} lower rates")
    figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize="small")
    _save(figure, path)


def _figure(layout: Literal["constrained"] | None = "constrained") -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=120, layout=layout)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    with replace_file(path) as file:
        figure.savefig(file, format="png")
