"""Constants of the planner's step time, fitted to published runs: prints them, and how far each row is from what they predict.

    python benchmarks/plan_constants.py            the constants in use, and every row beside its prediction
    python benchmarks/plan_constants.py --fit      fits them anew, and leaves out one size of model after the other

The rows are in ``tests/train/planning/published_steps.json``, each with its source. They are of other frameworks; none is of this one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt_train.planning.gpus import find_gpu
from mt_train.planning.step_time import CONSTANTS, Cluster, Constants, Traffic, Work, step_time, zero_bytes

ROWS = Path(__file__).parents[1] / "tests/train/planning/published_steps.json"
PER_NODE = 8
ARCHITECTURES = ("hopper", "ampere")


def published() -> list[dict[str, Any]]:
    """Return the rows, each with the shape of its model."""
    about = json.loads(ROWS.read_text())
    return [{**row, "shape": about["models"][row["model"]]} for row in about["rows"]]


def predict(row: dict[str, Any], constants: Constants = CONSTANTS) -> float:
    """Return tokens a second and GPU of a published row: weights shared as at ZeRO 3, all of them trained."""
    shape, gpu = row["shape"], find_gpu(row["gpu"])
    gpu = replace(gpu, memory_bandwidth=row.get("memory_bandwidth", gpu.memory_bandwidth))
    length, ranks = row["sequence_len"], row["gpus"]
    cluster = Cluster(gpu=gpu, per_node=PER_NODE, network=row["network"] / 8 * 1e9)
    work = Work(
        products=2.0 * shape["weights"],
        attention=2.0 * length * shape["width"] * shape["blocks"],  # 4 per channel of each token seen, half of the row
        channels=shape["blocks"] * shape["width"],
        backward=2.0,
        recomputed=1.0 if row["recompute"] else 0.0,
        tokens=row["micro_batch_size"] * length,
        rounds=row["micro_batches"],
        peak=gpu.bf16,
    )
    numbers = shape.get("numbers", shape["weights"] + length * shape["width"])  # MPT learns positions
    each, ending = zero_bytes(
        3, ranks=ranks, numbers=numbers, trained=numbers, weight_bytes=2, gradient_bytes=row["gradient_bytes"]
    )
    bandwidth = cluster.bandwidth(ranks)
    traffic = Traffic(hidden=each / bandwidth, waited=0.0, ending=ending / bandwidth, updated=numbers / ranks)
    return work.tokens * work.rounds / step_time(work, traffic, gpu, constants=constants).seconds


def errors(rows: Sequence[dict[str, Any]], constants: Constants = CONSTANTS) -> list[float]:
    """Return how much faster each row is predicted than it was: 0.1 is 10 % too fast."""
    return [predict(row, constants) / row["tokens_per_second_per_gpu"] - 1 for row in rows]


def fit(rows: Sequence[dict[str, Any]], start: Constants = CONSTANTS, steps: int = 400) -> Constants:
    """Return the constants with the least squares of logarithms."""

    def loss(values: Sequence[float]) -> float:
        if min(values) <= 0 or values[-1] > 1:
            return math.inf
        constants = _from_values(values)
        return sum(math.log(predict(row, constants) / row["tokens_per_second_per_gpu"]) ** 2 for row in rows)

    values = [*(start.products[each] for each in ARCHITECTURES), *(start.attention[each] for each in ARCHITECTURES)]
    return _from_values(_minimize(loss, [*values, start.pointwise, start.overlap], steps))


def _from_values(values: Sequence[float]) -> Constants:
    return Constants(
        products=dict(zip(ARCHITECTURES, values[:2], strict=True)),
        attention=dict(zip(ARCHITECTURES, values[2:4], strict=True)),
        pointwise=values[4],
        overlap=values[5],
    )


def _minimize(loss: Callable[[Sequence[float]], float], start: list[float], steps: int) -> list[float]:
    """Nelder and Mead's simplex (https://doi.org/10.1093/comjnl/7.4.308), from a start and 15 % beside it in each direction."""
    count = len(start)
    simplex = [start, *([x * (1.15 if i == j else 1) for j, x in enumerate(start)] for i in range(count))]
    found = [(loss(each), each) for each in simplex]
    for _ in range(steps):
        found.sort(key=lambda each: each[0])
        worst = found[-1][1]
        middle = [sum(each[j] for _, each in found[:-1]) / count for j in range(count)]

        def along(factor: float, middle: list[float] = middle, worst: list[float] = worst) -> tuple[float, list[float]]:
            point = [m + factor * (w - m) for m, w in zip(middle, worst, strict=True)]
            return loss(point), point

        reflected = along(-1.0)
        if reflected[0] < found[0][0]:
            found[-1] = min(reflected, along(-2.0), key=lambda each: each[0])
        elif reflected[0] < found[-2][0]:
            found[-1] = reflected
        elif (inside := along(0.5))[0] < found[-1][0]:
            found[-1] = inside
        else:
            best = found[0][1]
            points = [[(b + x) / 2 for b, x in zip(best, each, strict=True)] for _, each in found]
            found = [(loss(each), each) for each in points]
    return min(found, key=lambda each: each[0])[1]


def fitted_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that the constants are fitted to."""
    return [row for row in rows if row["use"] == "fit"]


def _describe(title: str, found: Sequence[float]) -> str:
    sizes = sorted(abs(each) for each in found)
    return (
        f"{title}: {len(found)} rows, median {statistics.median(sizes):.1%}, rms"
        f" {math.sqrt(sum(each**2 for each in found) / len(found)):.1%}, worst {sizes[-1]:.1%}"
    )


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit anew, and leave one size out after the other")
    rows = published()
    constants = CONSTANTS
    if parser.parse_args().fit:
        constants = fit(fitted_rows(rows), steps=1500)
        print(constants)
        for model in sorted({row["model"] for row in fitted_rows(rows)}):
            others = fit([row for row in fitted_rows(rows) if row["model"] != model], constants)
            print(
                _describe(
                    f"without {model}", errors([row for row in fitted_rows(rows) if row["model"] == model], others)
                )
            )
    for use in ("fit", "held out", "misfit"):
        chosen = [row for row in rows if row["use"] == use]
        print(_describe(use, errors(chosen, constants)))
    for row, off in zip(rows, errors(rows, constants), strict=True):
        layout = f"{row['gpus']} {row['gpu']}, {row['sequence_len']:,} tokens, mb {row['micro_batch_size']}"
        print(f"{row['use']:<9}{row['model']:<12}{layout:<42}{row['tokens_per_second_per_gpu']:>8,}{off:>+8.1%}")


if __name__ == "__main__":
    main()
