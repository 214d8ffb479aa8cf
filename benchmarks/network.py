"""Bytes and seconds that a slow network adds to a step, beside the planner's: two processes, each in a network namespace of its own.

    python benchmarks/network.py [--gbit 1] [--steps 8] [--cases "zero 0;zero 3"]

A pair of virtual interfaces joins the namespaces; ``tc`` lets each send ``--gbit`` gigabits a second (token bucket), and then as much as
it can. Both train the same Llama over gloo. Of each layout: bytes that rank 0 sent in a step, by the counter of its interface, beside
those that ``--plan`` counts; and the median seconds of a step with the slow network less those without, beside the planner's seconds.

Seconds need a quiet machine: on a busy one a free step varies by more than the network adds. Gloo has no reduce-scatter: it all-reduces.

It needs Linux, ``unshare``, ``nsenter``, ``ip`` and ``tc``, and no rights: all is in a user namespace, and gone when it ends.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

WORLD = 2
LINKS = ("mt0", "mt1")


def config(*, dtype: str = "fp32", recompute: bool = False, rounds: int = 1, **parallel: Any) -> dict[str, Any]:
    """13 million numbers, and few rows, so that a step is exchanging for the most part."""
    together = {"sequence", "pipeline"} & parallel.keys()
    rows = 2 * rounds * (1 if together else WORLD)
    return {
        "model": {"name": "llama", "n_layers": 8, "dim": 384, "n_heads": 6, "n_kv_heads": 3, "ffn_dim": 1024},
        "train": {"micro_batch_size": 2, "global_batch_size": rows, "sequence_len": 64, "dtype": dtype}
        | {"activation_checkpointing": recompute},
        "parallel": {"timeout_seconds": 300, **parallel},
        "data": {"eval": None, "read_rows": 64, "batching": "packing"},
        "eval": {"samples": 0},
        "checkpoint": {"every_steps": 100_000},
    }


CASES = {
    "zero 0": config(zero_stage=0),
    "zero 1": config(zero_stage=1),
    "zero 1, bf16": config(zero_stage=1, dtype="bf16"),
    "zero 2, bf16": config(zero_stage=2, dtype="bf16"),
    "zero 3": config(zero_stage=3),
    "zero 3, bf16, two micro-batches": config(zero_stage=3, dtype="bf16", rounds=2),
    "sequence 2": config(zero_stage=0, sequence=2),
}


def call(*command: str) -> None:
    subprocess.run(command, check=True)


def inside(pid: int) -> list[str]:
    """Return what runs a command in the other namespace."""
    return ["nsenter", "--target", str(pid), "--net"]


@contextmanager
def join_namespaces() -> Iterator[int]:
    """Join this namespace with a new one, and provide the process that holds that."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    own = os.readlink("/proc/self/ns/net")
    try:
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            assert holder.poll() is None, "unshare --net failed"
            time.sleep(0.01)
        call("ip", "link", "add", LINKS[0], "type", "veth", "peer", "name", LINKS[1])
        call("ip", "link", "set", LINKS[1], "netns", str(holder.pid))
        for rank, prefix in enumerate(([], inside(holder.pid))):
            call(*prefix, "ip", "address", "add", f"10.77.0.{rank + 1}/24", "dev", LINKS[rank])
            for link in ("lo", LINKS[rank]):
                call(*prefix, "ip", "link", "set", link, "up")
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


def launch(cases: dict[str, Any], steps: int, holder: int, gbit: float | None) -> dict[str, Any]:
    """Train all cases on both ranks, at this rate."""
    for rank, prefix in enumerate(([], inside(holder))):
        if gbit is not None:
            bucket = ["tbf", "rate", f"{round(gbit * 1000)}mbit", "burst", "256kb", "latency", "200ms"]
            call(*prefix, "tc", "qdisc", "replace", "dev", LINKS[rank], "root", *bucket)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", folder, "--steps", str(steps), "--cases", ";".join(cases)]
        base = {**os.environ, "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        processes = [
            subprocess.Popen(
                [*prefix, *command],
                env={**base, "RANK": str(rank), "LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": LINKS[rank]},
                stdout=subprocess.DEVNULL,
            )
            for rank, prefix in enumerate(([], inside(holder)))
        ]
        codes = [process.wait() for process in processes]
        assert codes == [0] * WORLD, f"the ranks ended with {codes}"
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def sent_bytes(link: str) -> int:
    """Return what an interface of this namespace has sent so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (counts,) = (line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() == link)
    return int(counts[8])


def work(folder: Path, names: list[str], steps: int) -> None:
    """Train as one rank, and note seconds and sent bytes of each step."""
    from mt_train import train
    from mt_train.engine.engine import Engine

    rank = int(os.environ["RANK"])
    found: dict[str, list[tuple[float, int]]] = {}
    original, noted = Engine.train_step, list[tuple[float, int]]()

    def train_step(*arguments: Any, **options: Any) -> Any:
        sent, began = sent_bytes(LINKS[rank]), time.perf_counter()
        result = original(*arguments, **options)
        noted.append((time.perf_counter() - began, sent_bytes(LINKS[rank]) - sent))
        return result

    Engine.train_step = train_step  # type: ignore[method-assign]
    for number, name in enumerate(names):
        os.environ["MT_STORE"] = str(folder / f"store-{number}")
        noted.clear()
        raw = copy.deepcopy(CASES[name])
        raw["train"]["steps"] = steps + 2
        train(raw, output=folder / f"run-{number}")
        found[name] = noted[2:]
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def plan(raw: dict[str, Any], gbit: float) -> tuple[float, float]:
    """Return bytes and seconds of a step's exchanges by the planner, for nodes of one rank."""
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.parts import Parts
    from mt_train.assemble.run import RunOptions
    from mt_train.planning.dry_run import dry_run
    from mt_train.planning.gpus import find_gpu
    from mt_train.planning.layouts import time_layout
    from mt_train.planning.step_time import WIRE, Cluster
    from mt_train.plugins.resolve import resolve

    parts = Parts.of(resolve(copy.deepcopy(raw), PluginHost.discover()))
    paper = dry_run(parts, RunOptions(output=None), world=WORLD, device="cpu")
    gpu = replace(find_gpu("h100-80g"), link=1e15)
    bytes_, seconds = (
        time_layout(paper, paper.parts.config, paper.plan, Cluster(gpu=gpu, per_node=1, network=each)).network
        for each in (1 / WIRE, gbit / 8 * 1e9)
    )
    return bytes_, seconds


def compare(names: list[str], steps: int, gbit: float) -> None:
    """Measure all cases, and print them beside the planner's figures."""
    with join_namespaces() as holder:
        cases = {name: CASES[name] for name in names}
        free, slow = (launch(cases, steps, holder, rate) for rate in (None, gbit))
    print(f"{gbit:g} Gbit/s, {steps} steps; seconds are medians (the slow step less the free one)\n")
    print(
        "| layout | MB planned | MB sent | sent / planned | s planned | s measured | measured / planned | free step, s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        planned, seconds = plan(CASES[name], gbit)
        sent = median(each[1] for each in slow[name])
        plain, slowed = (median(each[0] for each in found[name]) for found in (free, slow))
        cells = [f"{planned / 1e6:.2f}", f"{sent / 1e6:.2f}", f"{sent / planned:.2f}", f"{seconds:.3f}"]
        cells += [f"{slowed - plain:.3f}", f"{(slowed - plain) / seconds:.2f}", f"{plain:.3f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Enter a namespace, and compare there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, default=1.0, help="gigabits a second that each rank may send")
    parser.add_argument("--steps", type=int, default=8, help="steps that are measured, after two")
    parser.add_argument("--cases", help="some layouts, separated by semicolons", default="")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.cases.split(";") if options.cases else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--cases: there is no layout {'; '.join(unknown)}; there are {'; '.join(CASES)}")
    if options.worker:
        work(options.worker, names, options.steps)
    elif options.inside:
        compare(names, options.steps, options.gbit)
    else:
        own = ["unshare", "--map-root-user", "--net", sys.executable, __file__, "--inside", *sys.argv[1:]]
        os.execvp(own[0], own)


if __name__ == "__main__":
    main()
