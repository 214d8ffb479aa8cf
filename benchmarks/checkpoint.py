"""Saving a checkpoint, beside writing the same bytes with ``safetensors`` alone and syncing them.

    python benchmarks/checkpoint.py [--pairs 10] [--dim 512] [--layers 8]

A model is trained for one step on one process; then both sides write its weights and optimizer state in turn, and the
written tensors are compared once. The time that SHA-256 takes is counted apart: the other side has no such thing.
``pause`` is how long training stands still with ``checkpoint.background``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt_core.nn import TokenObjective
from mt_core.plugins.host import PluginHost
from mt_core.rows import Sample
from mt_train.assemble.model import build_engine
from mt_train.assemble.parts import Parts
from mt_train.checkpoint import manifest as manifest_module
from mt_train.checkpoint.files import sha256
from mt_train.checkpoint.store import CheckpointStore, Retention
from mt_train.engine.engine import Engine
from mt_train.engine.plan import make_plan
from mt_train.engine.processes import Process, join_group
from mt_train.engine.snapshot import take_snapshot
from mt_train.plugins.resolve import resolve


def trained_engine(deepspeed: Any, process: Process, options: argparse.Namespace) -> Engine:
    """An engine whose optimizer has state."""
    shape = {"dim": options.dim, "n_layers": options.layers, "n_heads": 8, "n_kv_heads": 4, "vocab_size": 32_000}
    raw = {"model": {"name": "llama", **shape, "ffn_dim": options.dim * 11 // 4}, "train": {"steps": 1}}
    parts, objective = Parts.of(resolve(raw, PluginHost.discover())), TokenObjective()
    plan = make_plan(parts.config, world=1, device="cpu", offers=parts.offers.values())
    engine = build_engine(parts, objective, plan=plan, process=process, deepspeed=deepspeed, say=lambda text: None)
    row = Sample(list(range(16)), [True] * 16, "row")
    engine.train_step([objective.collate([[row]], length=16).with_index()])
    return engine


def content(engine: Engine) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint, by file."""
    snapshot = take_snapshot(engine)
    return {"model": dict(snapshot.weights), "state": dict(snapshot.state)}


def write_plainly(files: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """safetensors and fsync, nothing else."""
    folder.mkdir()
    for name, tensors in files.items():
        save_file(tensors, str(folder / f"{name}.safetensors"))
        sync(folder / f"{name}.safetensors")
    sync(folder)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


class Hashing:
    """Counts the seconds that hashing takes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._honest = sha256
        vars(manifest_module)["sha256"] = self

    def __call__(self, path: Path) -> str:
        began = time.perf_counter()
        digest = self._honest(path)
        self.seconds += time.perf_counter() - began
        return digest


def time_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def compare(engine: Engine, folder: Path, pairs: int) -> None:
    files, hashing, store = content(engine), Hashing(), CheckpointStore(folder / "run")
    size = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
    found: dict[str, list[float]] = {"ours": [], "hash": [], "plain": [], "pause": []}

    def save(step: int) -> Path:
        return store.save(step, write=take_snapshot(engine).write, manifest={}, keep=Retention(last=pairs + 2))

    def one(side: str, step: int) -> float:
        """Neither side deletes, nor waits for what the other left to be written, while the clock runs."""
        for old in (folder / "plain", *store.folder.glob("step-*")):
            shutil.rmtree(old, ignore_errors=True)
        os.sync()
        hashing.seconds = 0.0
        seconds = time_of(lambda: save(step) if side == "ours" else write_plainly(files, folder / "plain"))
        return seconds - hashing.seconds

    for step in range(pairs + 1):
        for side in ("ours", "plain") if step % 2 else ("plain", "ours"):
            seconds = one(side, step)
            if step:  # the first of each side warms up
                found[side].append(seconds)
                found["hash"] += [hashing.seconds] if side == "ours" else []
            elif side == "ours":
                check_equal(folder, files)
    found["pause"] = [time_of(lambda: take_snapshot(engine, copied=True)) for _ in range(pairs)]
    ratio = statistics.median(a / b for a, b in zip(found["ours"], found["plain"], strict=True))
    print(f"{size / 2**20:.0f} MiB in {len(files)} files, {pairs} alternating pairs, median seconds (min - max)")
    for name, values in found.items():
        print(f"{name:<6} {statistics.median(values):7.3f} ({min(values):.3f} - {max(values):.3f})")
    print(f"ours / plain, the hash apart: {ratio:.3f}")


def check_equal(folder: Path, files: dict[str, dict[str, Tensor]]) -> None:
    """Both sides wrote the same tensors."""
    checkpoint = next((folder / "run" / "checkpoints").glob("step-*"))
    written = {
        "model": {name: t for path in checkpoint.glob("model/*.safetensors") for name, t in load_file(path).items()},
        "state": load_file(checkpoint / "state" / "rank-0000.safetensors"),
    }
    for kind, tensors in files.items():
        assert tensors.keys() == written[kind].keys(), f"the two sides wrote other {kind} tensors"
        assert all(torch.equal(tensor, written[kind][name]) for name, tensor in tensors.items()), kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where to write; default a temporary folder")
    options = parser.parse_args()
    process = Process.from_environment()
    with join_group(process, 60) as deepspeed, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        compare(trained_engine(deepspeed, process, options), Path(folder), options.pairs)


if __name__ == "__main__":
    main()
