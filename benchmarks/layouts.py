"""How exactly the layouts agree: the table of layout × precision × {equality, resume, other layout}, filled from a run.

    python benchmarks/layouts.py [--steps 20]

Each layout trains the same rows on two processes (clipping on, several micro-batches a step, rows of unequal length).
``one process``: largest relative difference of the losses, over all steps, from the run of one process in the same
precision. ``resume``: stopped in the middle and resumed with dropout on, against the run that was not stopped: SHA-256 of
parameters, moments and losses. ``2 to 1``, ``1 to 2``: saved after two steps and continued on the other number of
processes, against the run that stayed: losses of the next five steps, and of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[1] / "tests" / "core" / "engine" / "layout_worker.py"
LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"data parallel, ZeRO {stage}": {"stage": stage} for stage in (0, 1, 2, 3)},
    "pipeline 2": {"stage": "auto", "pipeline": 2},
    "sequence 2, ZeRO 1": {"stage": 1, "sequence": 2},
    "sequence 2, ZeRO 3": {"stage": 3, "sequence": 2},
}
PRECISIONS = ("fp32", "bf16")


def write_rows(path: Path) -> None:
    words = [f"{kind}{n}" for n in range(4) for kind in ("a", "fox", "it")]
    rows = [
        {"prompt": " ".join(words[: 1 + n % 5]), "response": " ".join(words[n % 3 : n % 3 + 1 + n * 7 % 6])}
        for n in range(40)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))


def launch(world: int, folder: Path, cases: dict[str, Any], name: str) -> dict[str, Any]:
    out = folder / f"{name}.json"
    command = [sys.executable, str(WORKER), json.dumps(cases), str(folder / "rows.jsonl"), str(out)]
    base = {**os.environ, "WORLD_SIZE": str(world), "MT_STORE": str(folder / f"store-{name}"), "OMP_NUM_THREADS": "1"}
    base["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        subprocess.Popen(command, env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=None)
        for rank in range(world)
    ]
    assert [process.wait() for process in processes] == [0] * world, f"the launch {name} failed"
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def cases_of(steps: int, folder: Path, do: str, tag: str) -> dict[str, Any]:
    """Every layout in every precision."""
    return {
        f"{name}|{dtype}": {
            **layout,
            "dtype": dtype,
            "steps": steps,
            "micro": 2,
            "length": 96,
            "do": do,
            "folder": str(folder / f"{tag}-{number}-{dtype}"),
            "model": {"dropout": 0.1} if do in ("resume", "dropout") else {},
        }
        for number, (name, layout) in enumerate(LAYOUTS.items())
        for dtype in PRECISIONS
    }


def difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(first, second, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl")
        run = cases_of(steps, folder, "run", "run")
        dropout = {f"{key}|dropout": {**case, "model": {"dropout": 0.1}} for key, case in run.items()}
        resume = {f"{key}|resume": case for key, case in cases_of(steps, folder, "resume", "resume").items()}
        saved = {
            world: {f"{key}|save": case for key, case in cases_of(steps, folder, "save", f"by-{world}").items()}
            for world in (1, 2)
        }
        one = launch(1, folder, run | saved[1], "one")
        moves = {f"{key}|move": case for key, case in cases_of(steps, folder, "proceed", "by-1").items()}
        two = launch(2, folder, run | dropout | resume | saved[2] | moves, "two")
        back = launch(1, folder, cases_of(steps, folder, "proceed", "by-2"), "back")
        print("| layout | precision | one process | resume | 2 to 1: five steps, all | 1 to 2: five steps, all |")
        print("|---|---|---|---|---|---|")
        for key in run:
            layout, dtype = key.split("|")
            whole = one[key]["losses"]
            same = all(two[f"{key}|dropout"][what] == two[f"{key}|resume"][what] for what in ("losses", "state"))
            cells = [f"{difference(whole, two[key]['losses']):.1e}", "equal" if same else "DIFFERS"]
            for before, after in ((two[key], back[key]), (one[key], two[f"{key}|move"])):
                stayed, moved = before["losses"][2:], after["losses"]
                cells.append(f"{difference(stayed[:5], moved[:5]):.1e}, {difference(stayed, moved):.1e}")
            print(f"| {layout} | {dtype} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
