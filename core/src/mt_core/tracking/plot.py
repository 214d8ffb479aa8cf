"""The loss curve as a picture: raw, smoothed, and evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SMOOTHING = 0.9
"""Weight of the past in the exponential moving average, which is corrected for its start as Adam's is."""


def smooth(values: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Exponential moving average with bias correction (https://arxiv.org/abs/1412.6980, section 3)."""
    average, out = 0.0, []
    for count, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        out.append(average / (1 - weight**count))
    return out


def plot_losses(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG of the records of ``metrics.jsonl``; without a single loss nothing is written."""
    from matplotlib.figure import Figure

    points = [(record["step"], record["loss"]) for record in records if record.get("loss") is not None]
    held_out = [(record["step"], record["eval_loss"]) for record in records if record.get("eval_loss") is not None]
    if not points:
        return
    steps, losses = [step for step, _ in points], [loss for _, loss in points]
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, losses, color="#9bb8d9", linewidth=1, label="training, each step")
    axes.plot(steps, smooth(losses), color="#1f4e8c", linewidth=2, label=f"training, moving average ({SMOOTHING:g})")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="#c8553d", markersize=5, label="held out")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats per trained token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    staged = path.with_name(f".tmp-{path.name}")
    staged.unlink(missing_ok=True)  # never through a link that somebody put there
    figure.savefig(staged, format="png")
    os.replace(staged, path)
