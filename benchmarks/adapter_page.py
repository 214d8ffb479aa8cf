"""The comparison of docs/adapters.md, table and picture, from the two files of ``benchmarks/results`` alone."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "adapters.json"
COSTS = RESULTS.with_name("adapter_costs.json")
PAGE, PICTURE = ROOT / "docs" / "adapters.md", ROOT / "docs" / "images" / "adapters.png"
BEGIN, END = "<!-- comparison: begin -->", "<!-- comparison: end -->"
LORA, WHOLE = "lora", "full"
NEAR = 0.1
"""How far from LoRA's trained numbers still counts as equal, as a share of them."""
DRAWN_FROM = "Description"
"""Key in the PNG's text whose value names what was drawn."""
DARK, LIGHT, WARM = "#1f4e8c", "#9bb8d9", "#c8553d"


@dataclass(frozen=True)
class Row:
    """One adapter. Losses in nats per byte, one for each seed; none for a run that diverged. Costs are relative to LoRA's."""

    name: str
    options: Mapping[str, Any]
    trained: float
    rate: float
    losses: tuple[float | None, ...]
    base: float
    is_near: bool
    step: float | None
    memory: float | None

    @property
    def loss(self) -> float:
        """On average over the runs that did not diverge."""
        return statistics.mean(self.finite) if self.finite else float("inf")

    @property
    def deviation(self) -> float:
        """Over seeds, of a single run."""
        return statistics.stdev(self.finite) if len(self.finite) > 1 else 0.0

    @property
    def finite(self) -> list[float]:
        """Losses of the runs that did not diverge."""
        return [each for each in self.losses if each is not None]

    @property
    def diverged_runs(self) -> int:
        """Runs that did."""
        return len(self.losses) - len(self.finite)


def rows() -> list[Row]:
    """Every adapter whose runs are done, the least loss first."""
    results, costs = _read(RESULTS), _read(COSTS)["adapters"]
    relative = {name: (each["step"], _bytes(each) / _bytes(costs[LORA])) for name, each in costs.items()}
    seeds = max(len(each.get("runs", ())) for each in results["adapters"].values())
    found = [
        _row(name, each, results["base"], relative.get(name, (None, None)))
        for name, each in results["adapters"].items()
        if len(each.get("runs", ())) == seeds
    ]
    return sorted(found, key=lambda row: (row.loss, row.name))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def _bytes(cost: Mapping[str, Any]) -> int:
    return sum(cost["bytes"].values())


def _row(name: str, found: Mapping[str, Any], base: Mapping[str, Any], cost: tuple[float | None, float | None]) -> Row:
    runs = [found["runs"][seed] for seed in sorted(found["runs"], key=int)]
    trained = statistics.mean(run["trained"] for run in runs)
    return Row(
        name=name,
        options=found["options"],
        trained=trained,
        rate=found["rate"],
        losses=tuple(run["loss"] for run in runs),
        base=base["loss"],
        is_near=abs(trained - base["wanted"]) <= NEAR * base["wanted"],
        step=cost[0],
        memory=cost[1],
    )


def table(found: list[Row]) -> str:
    """Markdown."""
    head = ("adapter", "options", "trained", "rate", "held-out loss", "gain", "step", "memory")
    base = ("**frozen base**", "", "0", "", f"{found[0].base:.3f}", "0", "", "")
    lines = [
        _line(head),
        _line(["---"] * 3 + ["---:"] * 5),
        *(_line(_cells(row)) for row in found),
        _line(base),
    ]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    trained = f"{row.trained:,.0f}"
    return [
        f"**{_show(row.name)}**" if row.name == WHOLE else f"`{row.name}`",
        ", ".join(f"{key} {_number(value)}" for key, value in row.options.items()),
        trained if row.is_near else f"*{trained}*",
        f"{row.rate:g}",
        _loss(row),
        f"{row.base - row.loss:.3f}" if row.finite else "",
        f"{row.step:.2f}" if row.step is not None else "",
        f"{row.memory:.2f}" if row.memory is not None else "",
    ]


def _loss(row: Row) -> str:
    if not row.finite:
        return f"diverged ({row.diverged_runs})"
    return f"{row.loss:.3f} ± {row.deviation:.3f}" + (f", {row.diverged_runs} diverged" if row.diverged_runs else "")


def _show(name: str) -> str:
    return "full fine-tuning" if name == WHOLE else name


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def section(found: list[Row]) -> str:
    """What stands between the markers."""
    best = next(row for row in found if row.name != WHOLE)
    alt = (
        f"Held-out loss, step time and memory of {sum(row.name != WHOLE for row in found)} adapters, ranked;"
        f" {best.name} has the least loss, {best.loss:.3f} nats per byte, and the frozen base {best.base:.3f}"
    )
    made = ", ".join(f"{name} {version}" for name, version in sorted(_read(RESULTS)["versions"].items()))
    return f"![{alt}](images/{PICTURE.name})\n\n{table(found)}\n\nMade with {made}."


def page(found: list[Row]) -> str:
    """The whole page, as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{section(found)}\n{END}{rest.partition(END)[2]}"


def picture_name(found: list[Row]) -> str:
    """Names what a picture shows: a hash of its rows."""
    shown = [(row.name, row.is_near, row.losses, row.base, row.step, row.memory) for row in found]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def write() -> None:
    """Table and picture."""
    found = rows()
    PAGE.write_text(page(found))
    draw(found)


def draw(found: list[Row]) -> None:
    """Ranked dots: losses with deviations, and beside them step time and memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.6 + 0.205 * len(found)), dpi=110, layout="constrained")
    losses, costs = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    _draw_losses(losses, found)
    _draw_costs(costs, found)
    for axes in (losses, costs):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", top=True, labeltop=True)
        axes.set_ylim(len(found) - 0.3, -0.7)
    figure.legend(frameon=False, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(PICTURE, format="png", metadata={DRAWN_FROM: picture_name(found), "Software": None})


def _draw_losses(axes: Any, found: list[Row]) -> None:
    axes.set_yticks(range(len(found)), [_show(row.name) for row in found], fontsize=8)
    for label, row in zip(axes.get_yticklabels(), found, strict=True):
        label.set_color(WARM if row.name in (LORA, WHOLE) else "black")
    kinds = (
        (True, DARK, DARK, "held-out loss, trained numbers as LoRA's within 10 %"),
        (False, DARK, "white", "with another number of trained ones"),
    )
    for is_near, edge, face, label in kinds:
        places, means, deviations = _points(found, is_near)
        axes.errorbar(
            *(means, places), xerr=deviations, fmt="o", color=edge, mfc=face, markersize=5, capsize=2, label=label
        )
    lora = next((row for row in found if row.name == LORA), None)
    if lora is not None:
        axes.axvspan(
            *(lora.loss - lora.deviation, lora.loss + lora.deviation),
            color=WARM,
            alpha=0.15,
            linewidth=0,
            label="LoRA ± a deviation",
        )
    axes.axvline(found[0].base, color="black", linestyle="--", linewidth=1, label="frozen base")
    axes.set_xlabel("held-out loss (nats per byte), mean and deviation over seeds")


def _points(found: list[Row], is_near: bool) -> tuple[list[int], list[float], list[float]]:
    chosen = [(at, row) for at, row in enumerate(found) if row.is_near == is_near and row.finite]
    return [at for at, _ in chosen], [row.loss for _, row in chosen], [row.deviation for _, row in chosen]


def _draw_costs(axes: Any, found: list[Row]) -> None:
    for key, marker, color, label in (
        ("step", "s", LIGHT, "step time / LoRA's"),
        ("memory", "D", WARM, "memory / LoRA's"),
    ):
        points = list(_costs(found, key))
        axes.plot(
            *([value for _, value in points], [at for at, _ in points]),
            marker,
            color=color,
            markersize=4.5,
            label=label,
        )
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("relative to LoRA")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _costs(found: list[Row], key: str) -> Iterator[tuple[int, float]]:
    for at, row in enumerate(found):
        value = getattr(row, key)
        if value is not None:
            yield at, value
