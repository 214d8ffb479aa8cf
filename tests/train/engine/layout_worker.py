"""Trains the same rows on many layouts in one launch, and prints what came of each as JSON. Run by test_layouts.py."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mt_core import Component, Control
from mt_core.nn import Block, BlockContext, LayerSpec, RMSNorm, Rotary, SdpaAttention
from mt_core.nn.blocks import Form
from mt_core.plugins.host import PluginHost
from mt_plugin_llama.model import build_block
from mt_train.assemble.callbacks import CallbackContext, Callbacks
from mt_train.assemble.data import build_data
from mt_train.assemble.isolation import largest_change
from mt_train.assemble.model import build_engine
from mt_train.assemble.parts import Parts
from mt_train.assemble.probe import probe_of
from mt_train.assemble.session import Session
from mt_train.assemble.stopping import Stopper
from mt_train.checkpoint.completion import ENDED
from mt_train.checkpoint.request import SAVE
from mt_train.checkpoint.store import find, verify
from mt_train.data.loader import Position
from mt_train.engine import buckets, fragments
from mt_train.engine.engine import Engine
from mt_train.engine.pipeline import PipelineEngine
from mt_train.engine.plan import make_plan
from mt_train.engine.processes import Process, join_group
from mt_train.engine.random_state import seed_everything
from mt_train.engine.sequence import UlyssesAttention, sequence_group
from mt_train.plugins.resolve import Resolved, resolve
from mt_train.tracking.recorder import Recorder

MODEL = {"name": "llama", "vocab_size": 259, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 48}
STEPS = 3


def offered_layers(config: Any) -> list[LayerSpec]:
    """Llama's layers as a plugin would give them; the costs put the cut after the first block."""
    rotary = Rotary(config.head_width, theta=config.rope_theta)
    blocks = [
        LayerSpec(prefix=f"model.layers.{i}", build=partial(build_block, config, rotary, i), cost=1.0)
        for i in range(config.n_layers)
    ]
    return [
        LayerSpec(prefix="model.embed_tokens", build=partial(nn.Embedding, config.vocab_size, config.dim), cost=0.0),
        *blocks,
        LayerSpec(prefix="model.norm", build=partial(RMSNorm, config.dim, eps=config.norm_eps), cost=0.0),
        LayerSpec(prefix="lm_head", build=partial(nn.Linear, config.dim, config.vocab_size, bias=False), cost=0.0),
    ]


class Losses(Recorder):
    """Keeps the records instead of writing them."""

    def __init__(self) -> None:
        super().__init__(None, None, None, None)
        self.records: list[Any] = []

    def append(self, record: Any) -> None:
        self.records.append(record)


class StopAfter:
    """A callback that ends the run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, context: CallbackContext) -> Control:
        return Control(stop=context.step == self.step)


def manifest_to_go_on(checkpoint: Path) -> dict[str, Any]:
    """The manifest without the end of the run: ``StopAfter`` is in no config, so that nothing there says that more is asked for."""
    return {**verify(checkpoint), ENDED: False}


class Bench:
    """One process group, many engines."""

    def __init__(self, host: PluginHost, process: Process, deepspeed: Any, rows: Path) -> None:
        self.host, self.process, self.deepspeed, self.rows = host, process, deepspeed, rows

    def session(
        self, case: dict[str, Any], output: Path | None = None, checkpoint: Path | None = None, seed: int = 3
    ) -> Session:
        world = self.process.world
        pipeline = min(case.get("pipeline", 1), world)
        shared = pipeline * min(case.get("sequence", 1), world // pipeline)  # ranks that have the same rows
        steps = case.get("steps", STEPS)
        raw = {
            "model": case.get("family") or {**MODEL, **case.get("model", {})},
            "dataset": {"name": case.get("dataset", "jsonl"), "path": str(self.rows)},
            "objective": case.get("objective", "sft"),
            "optimizer": case.get("optimizer", {"name": "adamw", "lr": 1e-2}),
            "quantizer": case.get("quantizer", "none"),
            "adapter": case.get("adapter", "full"),
            "schedule": case.get("schedule", "cosine"),
            "data": {"eval": 5, **case.get("data", {})},
            "train": {
                "steps": steps,
                "sequence_len": case.get("length", 64),
                "global_batch_size": 8,
                "micro_batch_size": case.get("micro", 8 // world * shared),
                "clip_norm": case.get("clip", 0.5),
                "seed": seed,
                "dtype": case.get("dtype", "fp32"),
                "activation_checkpointing": case.get("recompute", False),
                **case.get("train", {}),
            },
            "parallel": {
                "zero_stage": case["stage"],
                "offload": case.get("offload", "none"),
                "pipeline": pipeline,
                "sequence": shared // pipeline,
                "expert": min(case.get("expert", 1), world),
                "masters": case.get("masters", "auto"),
                "deepspeed": case.get("deepspeed", {}),
            },
            "eval": {"every_steps": case.get("eval_every", steps), "samples": 0, **case.get("eval", {})},
            "checkpoint": {"keep_last": 50, **case.get("checkpoint", {})},
            **case.get("more", {}),
        }
        resolved = resolve(raw, self.host)
        if case.get("offered"):
            offer = resolved.offers["train_model"]
            component = Component(name="llama", summary="layers of its own", build=offered_layers)
            resolved.offers["pipeline_layers"] = replace(offer, kind="pipeline_layers", component=component)
        if case.get("whole"):
            offer = resolved.offers["optimizer"]
            component = replace(offer.component, form="whole_parameter", layouts=frozenset({"zero0"}))
            resolved.offers["optimizer"] = replace(offer, component=component)
        self.change_run(resolved, case)
        parts = Parts.of(resolved)
        data = build_data(parts)
        plan = make_plan(parts.config, world=world, device="cpu", offers=parts.offers.values())
        buckets.BUCKET_NUMBERS = case.get("bucket", 1 << 24)
        seed_everything(seed, self.process.rank)
        engine = build_engine(
            parts,
            data.objective,
            plan=plan,
            process=self.process,
            deepspeed=self.deepspeed,
            say=lambda text: None,
            checkpoint=checkpoint,
            probe=seen_already if checkpoint else partial(probe_of, parts.config, data, plan, self.process),
        )
        return Session(parts, data, engine, output, Stopper())

    def change_run(self, resolved: Resolved, case: dict[str, Any]) -> None:
        """For another worker's own components."""

    def summary(self, engine: Engine, losses: Losses) -> dict[str, Any]:
        """Losses, norms and hashes of a finished case."""
        values = {name: weight.float().clone() for name, weight in engine.whole_weights()}
        weights = hashlib.sha256()
        for name, value in values.items():
            weights.update(name.encode() + value.numpy().tobytes())
        return {
            "losses": [record.loss for record in losses.records],
            "norms": [record.grad_norm for record in losses.records],
            "eval": [value for record in losses.records for value in record.evaluation.values()],
            "tokens": losses.records[-1].tokens,
            "weights": weights.hexdigest(),
            "state": state_hash(engine),
            "values": {name: self.as_result(value) for name, value in values.items()},
            "copies": copies(engine),
        }

    def as_result(self, value: torch.Tensor) -> Any:
        """A weight as the results have it; of a worker whose tests compare bits, a hash of it."""
        return value.flatten().tolist()

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Train ``STEPS`` steps."""
        session, losses = self.session(case), Losses()
        session.loop(session.restore(None, None), losses)
        return self.summary(session.engine, losses)

    def resume(self, case: dict[str, Any]) -> dict[str, Any]:
        """Two steps, save, and the others in a fresh engine, on another layout where the case names one."""
        with tempfile.TemporaryDirectory() as folder:
            shared = [folder]
            dist.broadcast_object_list(shared)
            output = Path(shared[0])
            first, losses = self.session(case, output), Losses()
            first.events.callbacks = Callbacks({"stop": StopAfter(2)})
            first.loop(first.restore(None, None), losses)
            checkpoint = find(output)
            manifest = manifest_to_go_on(checkpoint)
            self.deepspeed.utils.groups.mpu = None
            second = self.session({**case, **case.get("then", {})}, None, checkpoint, seed=3)
            seed_everything(99, self.process.rank)  # what was restored must win
            second.loop(second.restore(checkpoint, manifest), losses)
            dist.barrier()
            return self.summary(second.engine, losses)

    def save(self, case: dict[str, Any]) -> dict[str, Any]:
        """Two steps, saved for another launch."""
        output = Path(case["folder"])
        output.mkdir(exist_ok=True)
        session, losses = self.session(case, output), Losses()
        session.events.callbacks = Callbacks({"stop": StopAfter(2)})
        session.loop(session.restore(None, None), losses)
        return {"losses": [record.loss for record in losses.records]}

    def proceed(self, case: dict[str, Any]) -> dict[str, Any]:
        """The steps after another launch's two."""
        checkpoint = find(Path(case["folder"]))
        session, losses = self.session(case, None, checkpoint), Losses()
        session.loop(session.restore(checkpoint, manifest_to_go_on(checkpoint)), losses)
        return self.summary(session.engine, losses)

    def attend(self, case: dict[str, Any]) -> dict[str, Any]:
        """Distances between attention over shared rows and over whole ones: value, then gradients, sinks' last; ranks add theirs up."""
        rank, world, generator = self.process.rank, self.process.world, torch.Generator().manual_seed(0)
        shapes = [(2, 24, 4, 8), (2, 24, case["kv_heads"], 8), (2, 24, case["kv_heads"], case["width"]), (4,)]
        leaves = [torch.randn(shape, generator=generator).double().requires_grad_() for shape in shapes]
        weight = torch.randn(2, 24, 4, case["width"], generator=generator).double()
        options = {"window": case["window"], "chunk": case["chunk"], "softcap": case["softcap"], "sinks_N": leaves[3]}
        documents = torch.tensor([[0] * 15 + [1] * 9] * 2)
        context = BlockContext(documents, documents, SdpaAttention(), document_lengths=((15, 9), (15, 9)))
        whole = SdpaAttention()(*leaves[:3], context, **options)
        expected = [whole, *torch.autograd.grad((whole * weight).sum(), leaves)]
        shared = UlyssesAttention(SdpaAttention(), sequence_group(self.process, world), world)
        parts = [leaf.chunk(world, 1)[rank] for leaf in leaves[:3]]
        with count_calls(dist, "all_to_all_single") as calls:
            out = shared(*parts, context, **options)
            forward = len(calls)
            own = torch.autograd.grad((out * weight.chunk(world, 1)[rank]).sum(), leaves)
        for each in own:
            dist.all_reduce(each)
        found = [out, *own]
        expected[0] = whole.chunk(world, 1)[rank]
        far = [float((a - b).detach().abs().max()) for a, b in zip(found, expected, strict=True)]
        return {"far": far, "exchanges": [forward, len(calls) - forward]}

    def gathers(self, case: dict[str, Any]) -> dict[str, Any]:
        """Count the gathers of a step at ZeRO 3, by the tokens of a tile."""
        from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

        found = {}
        for tokens in (None, 20, 5):
            session = self.session({**case, "train": {"mlp_tile_tokens": tokens}})
            windows = session.loader.windows(session.restore(None, None).position)
            session.engine.train_step(next(windows).batches)  # DeepSpeed looks at the order of modules first
            with count_calls(PartitionedParameterCoordinator, "fetch_sub_module") as calls:
                session.engine.train_step(next(windows).batches)
            found[str(tokens)] = len(calls)
        return found

    def prove(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return how much documents see of each other: none; where attention mixes them; where a norm over the batch does."""
        session = self.session(case)
        batch = next(session.loader.windows(Position())).batches[0]
        honest, apart = largest_change(session.engine, batch), SdpaAttention.__call__
        SdpaAttention.__call__ = lambda self, q, k, v, context, **named: (
            apart(self, q, k, v + v.mean(0, keepdim=True), context, **named)  # rows
            if case.get("objective") == "sft"
            else self._one(q, k, v, Form(named.get("scale")))  # documents of a row
        )
        try:
            leaky = largest_change(session.engine, batch)
        finally:
            SdpaAttention.__call__ = apart
        return {"honest": honest, "leaky": leaky, **self.train_with_batch_norm(session, batch)}

    def train_with_batch_norm(self, session: Session, batch: Any) -> dict[str, Any]:
        """The same with batch normalisation behind a block, which keeps rows apart only when it is evaluated."""
        norm = nn.BatchNorm1d(MODEL["dim"], affine=False)
        for block in [each for each in session.engine.module.modules() if type(each) is Block]:
            block.add_module("mixing", norm)
            block.register_forward_hook(lambda block, given, out: norm(out.flatten(0, 1)).view_as(out))
        before = norm.running_mean.clone(), torch.get_rng_state()
        normed = largest_change(session.engine, batch)
        unchanged = torch.equal(norm.running_mean, before[0]) and torch.equal(torch.get_rng_state(), before[1])
        return {"normed": normed, "unchanged": unchanged}

    def inf(self, case: dict[str, Any]) -> dict[str, Any]:
        """One rank's loss turns infinite: nothing may change, on any rank."""
        session = self.session(case)
        windows = session.loader.windows(session.restore(None, None).position)
        session.engine.set_rate(1.0)
        asked = session.engine.train_step(next(windows).batches, lambda: SAVE * self.process.is_main)
        before = state_hash(session.engine)
        head, rank = session.engine.module.loss_head, self.process.rank
        honest = head.objective.loss
        bad = self.process.world - 1

        def loss(hidden: Any, weight: Any, batch: Any) -> Any:
            sums = honest(hidden, weight, batch)
            if rank != bad:
                return sums
            return type(sums)(sums.loss_sum + math.inf, sums.token_count, sums.metrics)

        head.objective.loss = loss
        result = session.engine.train_step(next(windows).batches)
        head.objective.loss = honest
        unchanged = before == state_hash(session.engine)
        wishes = {"saves": asked.save, "stops": asked.stop}
        return {"finite": result.finite, "applied": result.applied, "unchanged": unchanged, **wishes}


@contextmanager
def count_calls(owner: Any, name: str) -> Iterator[list[int]]:
    """A list that gets an item for each call of a function inside."""
    calls, function = [], getattr(owner, name)
    setattr(owner, name, lambda *args, **named: (calls.append(1), function(*args, **named))[1])
    try:
        yield calls
    finally:
        setattr(owner, name, function)


def seen_already(model: nn.Module) -> Any:
    """The probe of a run that resumes."""
    raise AssertionError(
        "a run that resumes has its ranks and first values from the checkpoint, and looks at no row again"
    )


def settle() -> None:
    """Take what is there by now out of the search for garbage, which every start of DeepSpeed makes: it took half of the time."""
    gc.collect()
    gc.freeze()


def state_hash(engine: Engine) -> str:
    """SHA-256 of this rank's weights, masters and moments, combined over ranks."""
    digest = hashlib.sha256()
    for name, weight in engine.whole_weights():
        digest.update(name.encode() + weight.float().contiguous().numpy().tobytes())
    for fragment in fragments.fragments(engine):
        for key in sorted(fragment.tensors):
            digest.update(key.encode() + fragment.tensors[key].detach().float().contiguous().numpy().tobytes())
    for name, value in sorted(engine.directions.tensors().items() if engine.directions else ()):
        digest.update(name.encode() + value.float().contiguous().numpy().tobytes())
    hashes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, digest.hexdigest())
    return "".join(hashes)


def copies(engine: Engine) -> dict[str, list[str]]:
    """For each weight that several pipeline stages share, the hashes of what its ranks hold."""
    shared = engine.stage.shared_parameters() if isinstance(engine, PipelineEngine) else {}
    own = {
        name: hashlib.sha256(parameter.detach().float().contiguous().numpy().tobytes()).hexdigest()
        for name, parameter in engine.named_parameters()
        if name in shared
    }
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return {name: [each[name] for each in found if name in each] for name in shared}


class SharedFolder(tempfile.TemporaryDirectory[str]):
    """A folder of rank 0, on all ranks."""

    def __enter__(self) -> Path:  # type: ignore[override]
        shared = [super().__enter__()]
        dist.broadcast_object_list(shared)
        return Path(shared[0])

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            dist.barrier()  # another rank may be reading
        super().__exit__(*error)


def records(losses: Losses) -> list[dict[str, float]]:
    """Figures of a step but times and memory."""
    names = ("step", "loss", "grad_norm", "lr", "tokens")
    return [
        {
            **{name: getattr(each, name) for name in names},
            **{name: value for name, value in each.metrics.items() if "seconds" not in name},
            **each.evaluation,
        }
        for each in losses.records
    ]


def main(kind: type[Bench] = Bench) -> None:
    cases, rows, out = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    process = Process.from_environment()
    host = PluginHost.discover()
    results = {}
    with join_group(process, 120) as deepspeed:
        bench = kind(host, process, deepspeed, rows)
        for name, case in cases.items():
            results[name] = getattr(bench, case.get("do", "run"))(case)
            deepspeed.utils.groups.mpu = (
                None  # DeepSpeed keeps a pipeline's grid, and a plain engine in this process would take it
            )
            settle()
    if process.is_main:
        out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
