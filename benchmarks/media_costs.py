"""A run of text alone beside the same run with the code from before media, and beside one that names an encoder.

    python benchmarks/media_costs.py --before COMMIT [--pairs 10] [--steps 12]

All sides encode the same conversations and train the same model from the same seed on one core, in fresh processes that alternate:
``before`` with the sources of another commit, ``now`` with those that stand here, and ``named`` with an encoder in the run that no
row has anything for, so that each micro-batch encodes a dummy. Samples and losses of ``before`` and ``now`` must be equal bit for bit
before anything is printed. Processor time counts all threads; imports, and the first step, come before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS, SEQUENCE, MICRO = 6_000, 512, 4
ENCODED = 3
"""Times that the rows are encoded, of which the fastest counts; of steps the median does."""
SHAPE = {"dim": 128, "n_layers": 4, "n_heads": 4, "n_kv_heads": 4, "ffn_dim": 384}
SIDES = ("before", "now", "named")
ENCODER = {"clip": {"size": "tiny", "image": 16, "patch": 4}}
FIGURES = {"rows": "rows encoded per CPU-second", "tokens": "tokens trained per CPU-second"}


def write_rows(path: Path) -> None:
    """Conversations of words that come often, with brackets and what else a row spells."""
    chance = random.Random(0)
    words = ["the", "quick", "<brown>", "fox", "jumps", "over", "a", "lazy", "dog", "<image>", "and", "é", "1.5"]
    with path.open("w") as file:
        for _ in range(ROWS):
            said = [" ".join(chance.choices(words, k=chance.randrange(2, 16))) for _ in range(4)]
            turns = [
                {"role": role, "content": each} for role, each in zip(("user", "assistant") * 2, said, strict=True)
            ]
            file.write(json.dumps({"messages": turns}) + "\n")


def measure(rows: Path, side: str, steps: int, sources: Path) -> dict[str, Any]:
    """Encode all rows, and train some steps, with these sources."""
    import torch

    import mt_core
    import mt_train
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.data import build_data, make_loader
    from mt_train.assemble.model import build_engine
    from mt_train.assemble.parts import Parts
    from mt_train.data.loader import Position
    from mt_train.engine.plan import make_plan
    from mt_train.engine.processes import Process, join_group
    from mt_train.engine.random_state import seed_everything
    from mt_train.plugins.resolve import resolve

    raw = {
        "model": {"name": "llama", **SHAPE},
        "objective": "sft",
        "dataset": {"name": "jsonl", "path": str(rows)},
        "data": {"eval": 100, "cache": None, "template": "chatml", "batching": "packing", "truncation": "right"},
        "train": {"sequence_len": SEQUENCE, "global_batch_size": MICRO, "micro_batch_size": MICRO, "steps": steps},
        **({"encoders": ENCODER} if side == "named" else {}),
    }
    torch.set_num_threads(1)
    assert {Path(mt_core.__file__).parents[2], Path(mt_train.__file__).parents[2]} == {
        sources / "core",
        sources / "train",
    }
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    encoding = []
    for _ in range(ENCODED):
        begin = time.process_time()
        data = build_data(parts)
        encoding.append(time.process_time() - begin)
    process = Process.from_environment()
    plan = make_plan(parts.config, world=1, device="cpu", offers=parts.offers.values())
    losses, seconds = list[float](), list[float]()
    with join_group(process, 60) as deepspeed:
        seed_everything(0, 0)
        engine = build_engine(
            parts, data.objective, plan=plan, process=process, deepspeed=deepspeed, say=lambda text: None
        )
        windows = make_loader(parts.config, data, plan, process).windows(Position())
        for _ in range(steps):
            begin = time.process_time()
            losses.append(float(engine.train_step(next(windows).batches).loss))
            seconds.append(time.process_time() - begin)
    return {
        "rows": ROWS / min(encoding),
        "tokens": SEQUENCE * MICRO / statistics.median(seconds[1:]),
        "losses": losses,
        "samples": data.train.fingerprint(),
    }


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "before"
        command = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*command, "add", "--detach", str(folder), commit], check=True, capture_output=True)
        try:
            yield folder
        finally:
            subprocess.run([*command, "remove", "--force", str(folder)], check=True, capture_output=True)


def run_side(side: str, sources: Path, rows: Path, steps: int) -> dict[str, Any]:
    """Measure one side in a process that finds these sources before all others."""
    found = sorted(path.parent for path in sources.glob("**/src/mt_*") if path.is_dir())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, found)), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        __file__,
        "--side",
        side,
        "--rows",
        str(rows),
        "--steps",
        str(steps),
        "--sources",
        str(sources),
    ]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure all sides in turn, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="whose sources the first side has")
    parser.add_argument("--pairs", type=int, default=10, help="runs of each side, in turn")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    for name in ("--rows", "--sources"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.rows, options.side, options.steps, options.sources)))
        return
    with tempfile.TemporaryDirectory() as folder, checked_out(options.before) as before:
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows)
        sources = {"before": before, "now": ROOT, "named": ROOT}
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for number in range(options.pairs):
            for side in SIDES if number % 2 else reversed(SIDES):
                found[side].append(run_side(side, sources[side], rows, options.steps))
            now, was = found["now"][-1], found["before"][-1]
            assert (now["samples"], now["losses"]) == (was["samples"], was["losses"]), "other samples, or other losses"
            print(f"{number + 1} of {options.pairs}", file=sys.stderr)
    print("| what | before | now | now / before | encoder named / now |\n|---|---|---|---|---|")
    for key, name in FIGURES.items():
        values = {side: [each[key] for each in found[side]] for side in SIDES}
        middle = {side: statistics.median(each) for side, each in values.items()}
        ratios = [now / was for now, was in zip(values["now"], values["before"], strict=True)]
        dummy = [named / now for named, now in zip(values["named"], values["now"], strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"
        print(
            f"| {name} | {middle['before']:,.0f} | {middle['now']:,.0f} | {spread} | {statistics.median(dummy):.3f} |"
        )


if __name__ == "__main__":
    main()
