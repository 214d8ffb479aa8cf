"""A guard against slower steps: this tree beside another state of it, by the processor time of a step.

    python benchmarks/guard.py --base COMMIT | --base-tree FOLDER [--pairs 5] [--steps 12] [--cases full,lora,packed,decode] [--least 0.93]

Each case (``guard_cases.py``: a tiny Llama trained whole, with LoRA and on packed rows, and steps of decoding) runs in fresh processes
that alternate between the two trees. What they compute is compared first, step by step. Of a pair of processes, the ratio is that of the
median steps; of a case, the median of its pairs. A case is slower where that is below ``--least``.

One JSON line a case; code 1 where one is slower or computes other values, 2 where a process fails. The verdict goes by processor time
(all threads), which a busy neighbour disturbs less; ratios of wall time stand beside it, and show waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("full", "lora", "packed", "decode")
LEAST = 0.93
"""Speed of this tree, as a share of the base's, below which a case is slower."""
FAR = 1e-4
"""Relative difference of two values up to which both trees compute the same."""

Measurement = Mapping[str, Sequence[float]]
"""Figures of a process, as ``guard_cases.Result``."""


def judge(
    base: Sequence[Measurement], now: Sequence[Measurement], *, least: float = LEAST, far: float = FAR
) -> dict[str, Any]:
    """Return the figures of a case and its ``verdict``: ``ok``, ``slower`` or ``other values``; pairs stand at the same place of both.

    Ratios are speeds of this tree relative to the base's: least, median and most of the pairs.
    """
    found: dict[str, Any] = {"difference": max(map(_difference, base, now))}
    for kind in ("cpu", "wall"):
        before, after = ([median(each[kind]) for each in side] for side in (base, now))
        ratios = sorted(a / b for a, b in zip(before, after, strict=True))
        found[f"base_{kind}_ms"], found[f"now_{kind}_ms"] = (round(1e3 * median(side), 2) for side in (before, after))
        found[f"{kind}_ratio"] = [round(each, 3) for each in (ratios[0], median(ratios), ratios[-1])]
    is_slower = found["cpu_ratio"][1] < least
    verdict = "other values" if not found["difference"] <= far else "slower" if is_slower else "ok"
    return {"verdict": verdict, **found}


def _difference(base: Measurement, now: Measurement) -> float:
    """Return the largest relative difference of two processes' values; infinite where they have not equally many, or some are NaN."""
    if len(base["values"]) != len(now["values"]) or any(map(isnan, (*base["values"], *now["values"]))):
        return float("inf")
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(base["values"], now["values"], strict=True))


@contextmanager
def check_out(commit: str) -> Iterator[Path]:
    """Provide the sources of a commit in a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run([*git, "add", "--detach", str(folder), commit], capture_output=True, text=True)
        if added.returncode:
            raise SystemExit(
                f"guard: --base {commit} cannot be checked out; name a commit of this repository: {added.stderr.strip()}"
            )
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True, capture_output=True)


def run_side(tree: Path, case: str, steps: int) -> Measurement:
    """Measure a case in a process that finds the packages of this tree before all others."""
    packages = sorted({path.parent for path in (*tree.glob("*/src/mt_*"), *tree.glob("plugins/*/src/mt_*"))})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--side", case, "--base-tree", str(tree)]
    done = subprocess.run([*command, "--steps", str(steps)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"guard: case {case} failed in {tree}, code {done.returncode}:\n{done.stderr[-3000:]}")
    result: Measurement = json.loads(done.stdout.splitlines()[-1])
    return result


def measure_here(case: str, tree: Path, steps: int) -> None:
    """Measure a case in this process, and print it as the last line."""
    import guard_cases

    import mt_train

    found = Path(mt_train.__file__).resolve()
    assert found.is_relative_to(tree.resolve()), f"mt_train came from {found}, not from {tree}"
    with tempfile.TemporaryDirectory() as folder:
        print("\n" + json.dumps(guard_cases.CASES[case](Path(folder), steps)))


def compare(base: Path, options: argparse.Namespace) -> bool:
    """Run all cases, print their lines, and return whether each is ok."""
    ok = True
    for case in options.cases:
        found: dict[Path, list[Measurement]] = {base: [], ROOT: []}
        for number in range(options.pairs):
            for tree in (base, ROOT) if number % 2 else (ROOT, base):
                found[tree].append(run_side(tree, case, options.steps))
        line = judge(found[base], found[ROOT], least=options.least, far=options.far)
        print(json.dumps({"case": case, **line}), flush=True)
        ok &= line["verdict"] == "ok"
    return ok


def main() -> None:
    """Compare this tree with a commit or a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--base", metavar="COMMIT", help="commit of this repository that is compared with")
    source.add_argument("--base-tree", type=Path, metavar="FOLDER", help="another checkout that is compared with")
    parser.add_argument("--pairs", type=int, default=5, help="processes of each tree and case, in turn")
    parser.add_argument("--steps", type=int, default=12, help="steps that are timed in each process")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), default=list(NAMES), help="some of: " + ", ".join(NAMES)
    )
    parser.add_argument(
        "--least", type=float, default=LEAST, help=f"speed relative to the base that is ok (default: {LEAST})"
    )
    parser.add_argument(
        "--far", type=float, default=FAR, help=f"relative difference of values that is ok (default: {FAR})"
    )
    parser.add_argument("--side", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.cases) - set(NAMES):
        parser.error(f"--cases: there is no case {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if min(options.pairs, options.steps) < 1:
        parser.error(f"--pairs {options.pairs} and --steps {options.steps} have to be 1 at least")
    if options.side:
        measure_here(options.side, options.base_tree, options.steps)
        return
    if options.base_tree:
        sys.exit(not compare(options.base_tree.resolve(), options))
    with check_out(options.base) as base:
        sys.exit(not compare(base, options))


if __name__ == "__main__":
    main()
