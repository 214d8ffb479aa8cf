"""Measures the live tensors of real steps in many layouts, beside what the plan says, as JSON. Run by test_memory.py."""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from expert_worker import put_mixture

from mt_core.plugins.host import PluginHost
from mt_train.assemble.data import build_data, make_loader
from mt_train.assemble.model import build_engine
from mt_train.assemble.parts import Parts
from mt_train.data.loader import Position
from mt_train.engine import buckets
from mt_train.engine.engine import Engine
from mt_train.engine.plan import make_plan
from mt_train.engine.processes import Process, join_group
from mt_train.engine.settings import BUCKET_ELEMENTS
from mt_train.planning import memory
from mt_train.planning.contents import contents
from mt_train.planning.meta_model import build_meta_model
from mt_train.plugins.resolve import resolve

SIZES: dict[str, dict[str, int]] = {
    "small": {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 160},
    "middle": {"dim": 128, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 336},
    "large": {"dim": 256, "n_layers": 6, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 688},
}
EVENTS = ("reduce_gradients", "overlapping_partition_gradients_reduce_epilogue", "update_hp_grads", "step")
"""What DeepSpeed's optimizers call between the last backward and the update."""

REDUCE_SCATTER = dist.reduce_scatter_tensor

Storages = dict[int, int]
"""Address → bytes."""


def of(tensors: list[Any]) -> Storages:
    """The storages of tensors that have memory."""
    found: Storages = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.device.type != "meta" and tensor.untyped_storage().nbytes():
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return found


def tensors() -> list[Tensor]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Tensor)]


def live_storages() -> Storages:
    return of(tensors())


class Probe:
    """Takes note of what is live at each moment of a step when gradients might be at their largest."""

    def __init__(self, engine: Engine) -> None:
        self.parameters = list(engine.module.parameters())
        self.zero = engine.zero_optimizer
        self.inner = engine.inner_optimizer
        self.moments: list[Storages] = []
        for owner in {id(each): each for each in (self.zero, self.inner)}.values():
            for name in EVENTS:
                if hasattr(owner, name):
                    setattr(owner, name, self._note(getattr(owner, name)))

        dist.reduce_scatter_tensor = self._note(REDUCE_SCATTER)  # what masters of our own call for each bucket

    def _note(self, call: Any) -> Any:
        def noted(*arguments: Any, **named: Any) -> Any:
            time.sleep(0.05)  # gloo lets go of a buffer that it has reduced a moment later
            seen = [parameter.grad for parameter in (*self.parameters, *self.flat_tensors())]  # so that Python has them
            self.moments.append(live_storages() | of(seen))
            return call(*arguments, **named)

        return noted

    def flat_tensors(self) -> list[Tensor]:
        own = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        return [*own, *getattr(self.zero, "fp32_partitioned_groups_flat", [])]

    def weights(self) -> Storages:
        return of([each for p in self.parameters for each in (p.data, getattr(p, "ds_tensor", None))])

    def state(self) -> Storages:
        """Masters included."""
        return of([*self.flat_tensors(), *(value for state in self.inner.state.values() for value in state.values())])


def bucket(size: int) -> bool:
    """Set aside by DeepSpeed to reduce gradients, whatever the model."""
    return size in (BUCKET_ELEMENTS * 4, BUCKET_ELEMENTS * 2)


def measure(engine: Engine, windows: Any, before: list[Tensor]) -> dict[str, int]:
    engine.set_rate(1.0)
    engine.train_step(next(windows).batches)
    probe, window = Probe(engine), next(windows).batches
    engine.train_step(window)
    weights = probe.weights()
    state = {key: size for key, size in probe.state().items() if key not in weights}
    known = {*of(before), *weights, *state, *of([each for batch in window for each in vars(batch).values()])}
    gradients = [
        sum(size for key, size in moment.items() if key not in known and not bucket(size)) for moment in probe.moments
    ]
    return {"weights": sum(weights.values()), "optimizer": sum(state.values()), "gradients": max(gradients)}


def run(host: PluginHost, process: Process, deepspeed: Any, case: dict[str, Any], rows: str) -> dict[str, Any]:
    before = tensors()  # kept until the end, so that nothing new gets the address of something old
    pipeline = case.get("pipeline", 1)
    raw: dict[str, Any] = {
        "model": {"name": "llama", "vocab_size": 259, **SIZES[case["size"]], **case.get("model", {})},
        "dataset": {"name": "jsonl", "path": rows},
        "optimizer": case.get("optimizer", "adamw"),
        "data": {"eval": None},
        "train": {
            "steps": 3,
            "sequence_len": 16,
            "micro_batch_size": 1,
            "global_batch_size": case.get("micro", 2) * process.world // pipeline,
            "dtype": case.get("dtype", "fp32"),
        },
        "parallel": {"zero_stage": case["stage"], "offload": case.get("offload", "none"), "pipeline": pipeline},
    }
    raw["parallel"] |= {"expert": case.get("expert", 1), "masters": case.get("masters", "auto")}
    buckets.BUCKET_NUMBERS = memory.BUCKET_NUMBERS = case.get("bucket", 1 << 24)
    resolved = resolve(raw, host)
    if "expert" in case:
        put_mixture(resolved)
    parts = Parts.of(resolved)
    data = build_data(parts)
    plan = make_plan(parts.config, world=process.world, device="cpu", offers=parts.offers.values())
    engine = build_engine(parts, data.objective, plan=plan, process=process, deepspeed=deepspeed, say=lambda text: None)
    windows = make_loader(parts.config, data, plan, process).windows(Position())
    content = contents(parts, plan, build_meta_model(parts, pipeline))[process.rank if pipeline > 1 else 0]
    planned = {
        "weights": memory.weights(plan, content).total,
        # what an offloaded optimizer has beside them in the host's memory is not told apart below
        "gradients": memory.gradients(plan, content).total + memory.buffers(plan, content).host,
        "optimizer": memory.optimizer_state(plan, content).total,
    }
    return {"planned": planned, "measured": measure(engine, windows, before)}


def main() -> None:
    cases, rows, out = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    process, host, results = Process.from_environment(), PluginHost.discover(), {}
    with join_group(process, 120) as deepspeed:
        gc.collect()
        gc.freeze()  # what is there by now has no part in this, and looking through it takes most of the time
        for name, case in cases.items():
            found: list[Any] = [None] * process.world
            dist.all_gather_object(found, run(host, process, deepspeed, case, rows))
            results[name] = found
            deepspeed.utils.groups.mpu = None  # DeepSpeed keeps a pipeline's grid
    if process.is_main:
        out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
