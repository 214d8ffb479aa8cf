"""Views of one or several runs: everything that a page shows, or what has changed since it was told last."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mt_tools.report import (
    PARTS,
    Chart,
    Curves,
    Markup,
    Run,
    Series,
    chart_data,
    charts_of,
    element,
    figures,
    join,
    number,
    section,
    table,
)

from .comparison import equal_tokens
from .reader import Machine, RunReader

MACHINE = (
    Chart("cpu", "Processors", "share that works", zero=True, smooth=False),
    Chart("process_cpu", "Processors of the run", "kept busy", zero=True, smooth=False),
    Chart("memory_gib", "Memory of the run", "GiB", zero=True, smooth=False),
    Chart("memory_free_gib", "Free memory", "GiB", zero=True, smooth=False),
    Chart("gpu_use", "GPU", "share of the time", zero=True, smooth=False),
    Chart("gpu_memory_gib", "Memory of the GPU", "GiB", zero=True, smooth=False),
    Chart("gpu_watts", "Power of the GPU", "W", zero=True, smooth=False),
    Chart("gpu_celsius", "Temperature of the GPU", "°C", zero=True, smooth=False),
    Chart("disk_free_gib", "Free disk", "GiB", zero=True, smooth=False),
)
"""The figures of callback ``system``."""
SECONDS = " seconds"
"""Name of the seconds among the forms of series; no figure has it."""
NAMES = (
    "heads",
    "tokens",
    "evaluations",
    "checkpoint-evaluations",
    "answers",
    "samples",
    "notices",
    "data",
    "config",
    "plugins",
)
"""Parts of the page that are made here, whole."""


class Known:
    """Figures of one run as a page has them."""

    def __init__(self, curves: Curves) -> None:
        self.last_step, self.forms = curves.last_step, _forms(curves)

    def news(self, curves: Curves, keys: Collection[str]) -> dict[str, Any] | None:
        """Return what has come to series and axes, whole ones where their groups are other ones now; nothing where nothing has."""
        if curves.last_step <= self.last_step:
            return None
        since, now = self.last_step + 1, _forms(curves)

        def start(name: str) -> int | None:
            return since if self.forms.get(name) == now.get(name) else None

        series = {key: each.data(start(key)) for key, each in curves.series.items() if key in keys}
        axes = {"tokens": curves["tokens"].corners(start("tokens")), "time": curves.seconds.corners(start(SECONDS))}
        self.last_step, self.forms = curves.last_step, now
        return {
            "series": {key: each for key, each in series.items() if each["x"]},
            "axes": axes,
            "last": self.last_step,
        }


@dataclass
class Sent:
    """State of a page: how far figures came and in which form, and the texts of its parts."""

    runs: list[tuple[str, int]] = field(default_factory=list)
    curves: list[Known] = field(default_factory=list)
    machines: dict[str, Known] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    keys: dict[str, object] = field(default_factory=dict)
    problem: str = ""


class RunsView:
    """The page of some runs, for one reader of it."""

    def __init__(self, readers: Sequence[RunReader]) -> None:
        self._readers = readers
        self._sent: Sent | None = None

    def next_message(self, now: float | None = None) -> tuple[str, dict[str, Any]] | None:
        """Return ``snapshot`` with everything, or ``delta`` with what has changed; nothing where nothing has."""
        with self._reading(time.time() if now is None else now) as runs:
            drawn = charts_of(runs)
            sent = self._sent
            if sent is None or drawn != sent.charts or sent.runs != self._present():
                return "snapshot", self._snapshot(runs, drawn)
            content = self._delta(runs, sent)
            return ("delta", content) if content else None

    @contextmanager
    def _reading(self, now: float) -> Iterator[list[Run]]:
        """Hold all runs, read anew, in one order, so that two pages never wait for each other; those that cannot be read are left out."""
        with ExitStack() as stack:
            for reader in sorted(self._readers, key=lambda reader: reader.identifier):
                stack.enter_context(reader.lock)
                reader.refresh(now)
            yield [reader.run for reader in self._readers if reader.run is not None]

    # ----------------------------------------------------------------------------------------------- everything

    def _snapshot(self, runs: Sequence[Run], drawn: list[Chart]) -> dict[str, Any]:
        self._sent = sent = Sent(charts=drawn, problem=self._problem())
        sent.runs, sent.curves = self._present(), [Known(run.curves) for run in runs]
        return {
            "problem": sent.problem,
            "data": chart_data(runs, drawn),
            "figures": join(*figures(runs, drawn)),
            "parts": self._changed_parts(runs, sent),
            "machine": self._machine_snapshot(sent),
            "ids": [reader.identifier for reader in self._readers if reader.run is not None],
        }

    # ---------------------------------------------------------------------------------------------- what changed

    def _delta(self, runs: Sequence[Run], sent: Sent) -> dict[str, Any]:
        content: dict[str, Any] = {}
        keys = {key for chart in sent.charts for key in (chart.key, chart.held_out) if key}
        news = [known.news(run.curves, keys) for known, run in zip(sent.curves, runs, strict=True)]
        if any(news):
            content["runs"] = {str(place): each for place, each in enumerate(news) if each}
        if parts := self._changed_parts(runs, sent):
            content["parts"] = parts
        machines = self._machines()
        if machines.keys() != sent.machines.keys():
            content["machine"] = self._machine_snapshot(sent)
        elif any(growth := [sent.machines[name].news(machines[name].curves, _KEYS) for name in machines]):
            content["growth"] = {str(place): each for place, each in enumerate(growth) if each}
        if (problem := self._problem()) != sent.problem:
            content["problem"] = sent.problem = problem
        return content

    def _changed_parts(self, runs: Sequence[Run], sent: Sent) -> dict[str, str]:
        """Return the parts whose text is another one; what is made of files that have not changed is not made again."""
        changed: dict[str, str] = {}
        for name in NAMES:
            key = self._key(name)
            if key is not None and sent.keys.get(name, self) == key:
                continue
            sent.keys[name] = key
            text = self._part(name, runs)
            if sent.parts.get(name, "") != text:
                sent.parts[name] = changed[name] = text
        return changed

    def _key(self, name: str) -> object:
        """Return what a part depends on; ``None`` for one that is made each time."""
        if name in ("heads", "tokens"):
            return None if name == "heads" or len(self._readers) > 1 else ()
        return tuple(reader.versions[name] for reader in self._readers)

    def _part(self, name: str, runs: Sequence[Run]) -> Markup:
        if not runs:
            return Markup("")
        if name == "tokens":
            return equal_tokens(runs)
        if name == "notices":
            return notices([(reader.name, list(reader.events)) for reader in self._readers])
        return PARTS[name](runs)

    def _problem(self) -> str:
        return " ".join(reader.problem for reader in self._readers if reader.problem)

    def _machines(self) -> dict[str, Machine]:
        """Return what is known of machines, by rank: of one run alone, since several would be too many lines."""
        known = self._readers[0].machines if len(self._readers) == 1 else {}
        return {name: machine for name, machine in sorted(known.items(), key=_rank) if machine.curves.records}

    def _machine_snapshot(self, sent: Sent) -> dict[str, Any] | None:
        machines = self._machines()
        sent.machines = {name: Known(machine.curves) for name, machine in machines.items()}
        return _machine_data(machines)

    def _present(self) -> list[tuple[str, int]]:
        """Return which runs can be read, and in which epoch each of them is."""
        return [(reader.identifier, reader.epoch) for reader in self._readers if reader.run is not None]


def _forms(curves: Curves) -> dict[str, tuple[int, bool]]:
    return {key: series.form for key, series in curves.series.items()} | {SECONDS: curves.seconds.form}


def _machine_data(machines: dict[str, Machine]) -> dict[str, Any] | None:
    """Return what draws the figures of the machine, a line for each rank."""
    if not machines:
        return None
    drawn = [chart for chart in MACHINE if any(chart.key in machine.curves.series for machine in machines.values())]
    runs = [
        {
            "name": f"rank {_rank((name, machine))}" + (f" on {machine.host}" if machine.host else ""),
            "last": machine.curves.last_step,
            "axes": {"tokens": _EMPTY, "time": _EMPTY},
            "series": {chart.key: machine.curves[chart.key].data() for chart in drawn},
        }
        for name, machine in machines.items()
    ]
    charts = [{key: value for key, value in vars(chart).items() if value != ""} for chart in drawn]
    return {"clock": "time since the run began", "average_over": 1, "charts": charts, "runs": runs}


_KEYS = [chart.key for chart in MACHINE]
_EMPTY: dict[str, list[Any]] = Series().corners()


def _rank(item: tuple[str, Machine]) -> int:
    digits = "".join(filter(str.isdigit, item[0]))
    return int(digits) if digits else 0


def notices(said: Sequence[tuple[str, Sequence[Any]]]) -> Markup:
    """Return the events of runs, newest first."""
    many = len(said) > 1
    lines = sorted(
        ((event["time"], event, name) for name, events in said for event in events), key=lambda line: -line[0]
    )
    rows = [
        [_clock(moment), event["kind"], number(event["step"]), *([name] if many else []), event["text"]]
        for moment, event, name in lines
    ]
    if not rows:
        return Markup("")
    return section("notices", "Notices", table(["Time", "kind", "step", *(["run"] if many else []), "text"], rows))


def _clock(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "–"


def machine_figures() -> Markup:
    """The frames for the figures of the machine; the script shows those that it has."""
    frames = (
        element(
            "figure",
            element("figcaption", element("h3", chart.title), element("span", f" {chart.unit}", class_="unit")),
            element("div", class_="plot"),
            class_="chart card",
            data_key=chart.key,
            hidden=True,
        )
        for chart in MACHINE
    )
    return element("div", *frames, class_="charts")
