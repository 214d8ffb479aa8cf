"""``--train.seeds 1,2,3``: the same run with each seed in turn, and what their results have in common."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mt_core.errors import UsageError
from mt_core.plugins.host import PluginHost
from mt_train.checkpoint.files import replace_text
from mt_train.checkpoint.folder import next_run_folder
from mt_train.plugins.resolve import resolve
from mt_train.tracking.logs import show
from mt_train.tracking.metrics import MetricsFile

SUMMARY = "seeds.json"


Train = Callable[[Mapping[str, Any], dict[str, Any]], int]
"""One run, of flags and the keys of a run; returns its exit code."""


def train_seeds(flags: Mapping[str, Any], asked: Mapping[str, Any], host: PluginHost, train_once: Train) -> int:
    """One run a seed, in ``OUTPUT/seed-N``; ends at the first that does not finish, with its code."""
    train = dict(asked["train"])
    seeds = parse_seeds(train.pop("seeds"))
    raw = {**asked, "train": train}
    if "seed" in train:
        raise UsageError(f"train.seed and train.seeds are both set ({train['seed']} and {seeds}); keep one")
    if flags.get("output") == "none" or flags.get("resume", "auto") != "auto":
        raise UsageError("train.seeds makes one run a seed in --output: it takes no --output none and no --resume RUN")

    def with_seed(seed: int, folder: Mapping[str, str]) -> int:
        return train_once({**flags, **folder}, {**raw, "train": {**train, "seed": seed}})

    if "print_config" in flags or "dry_run" in flags:
        return with_seed(seeds[0], {})
    parent = Path(flags.get("output") or next_run_folder(f"{resolve(raw, host).stem}-seeds"))
    for number, seed in enumerate(seeds, start=1):
        show(f"seed {seed} ({number} of {len(seeds)})")
        if code := with_seed(seed, {"output": str(parent / f"seed-{seed}")}):
            return code
    results = {seed: final_figures(parent / f"seed-{seed}") for seed in seeds}
    replace_text(parent / SUMMARY, json.dumps({"schema": 1, "seeds": results}, indent=1) + "\n")
    show(describe(results))
    return 0


def parse_seeds(given: Any) -> list[int]:
    """``1,2,3`` or ``[1, 2, 3]``: whole numbers from 0 on, each once."""
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    try:
        seeds = [int(str(part).strip()) for part in parts]
    except ValueError as error:
        raise UsageError(f"train.seeds is {given!r}; give whole numbers, for instance 1,2,3") from error
    if not seeds:
        raise UsageError(f"train.seeds is {given!r}, which is no seed; give at least one, for instance 1,2,3")
    if len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise UsageError(f"train.seeds is {given!r}; give each seed once, and none below 0")
    return seeds


def final_figures(run: Path) -> dict[str, float | None]:
    """Training loss and whatever the last evaluation gave; ``None`` for what was no number."""
    last, evaluated = dict[str, float | None](), dict[str, float | None]()
    for last in MetricsFile(run / "metrics.jsonl").records():
        evaluated = last if "eval_loss" in last else evaluated
    return {"loss": last["loss"]} | {key: value for key, value in evaluated.items() if key.startswith("eval_")}


def describe(results: Mapping[int, Mapping[str, float | None]]) -> str:
    """A line for each figure: mean ± sample deviation of those that are numbers, and the value of each seed."""
    seeds = ", ".join(map(str, results))
    lines = [f"{len(results)} seeds ({seeds}), mean ± deviation:"]
    for name in next(iter(results.values())):
        values = [figures[name] for figures in results.values() if name in figures]
        numbers = [value for value in values if value is not None]
        mean = f"{statistics.mean(numbers):.4f} ± {_deviation(numbers):.4f}" if numbers else "no number"
        lines.append(f"  {name:<16}{mean}   {_each(values)}")
    return "\n".join(lines)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _each(values: Sequence[float | None]) -> str:
    return "(" + ", ".join("no number" if value is None else f"{value:.4f}" for value in values) + ")"
