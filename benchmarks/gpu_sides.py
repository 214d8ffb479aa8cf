"""One training of one side: ours, or ``transformers.Trainer``. Both read the same weights and the same random tokens."""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu_sizes import Size
from train_step import with_peft

RATE, DECAY, RANK = 1e-4, 0.1, 16
SKIPPED = 3
"""Steps before the clock starts: they allocate, compile, and choose kernels."""


class Clock:
    """Seconds of each step, until the device has done all of it."""

    def __init__(self) -> None:
        self.began = self.last = time.perf_counter()
        self.seconds: list[float] = []

    def tick(self) -> None:
        """Note the end of a step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now

    def result(self, losses: list[float], tokens: int) -> dict[str, Any]:
        """Return what a case reports. ``tokens`` are those of a step."""
        counted = self.seconds[SKIPPED:] or self.seconds
        return {
            "losses": losses,
            "tokens_per_second": tokens / statistics.median(counted),
            "slowest": tokens / max(counted),
            "fastest": tokens / min(counted),
            "first_step_seconds": self.seconds[0],
            **peak_memory(),
        }


def peak_memory() -> dict[str, float]:
    """Return the largest GiB so far: what tensors took, and what torch had reserved; of a process without a GPU its resident size."""
    if torch.cuda.is_available():
        return {
            "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        }
    return {"allocated_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def tokens(step: int, rows: int, length: int, vocabulary: int) -> torch.Tensor:
    """The rows of a step, the same on both sides."""
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(step))


def make_weights(folder: Path, size: Size) -> None:
    """Write random weights in bf16, drawn on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **size.shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)


# ----------------------------------------------------------------------------------------------------------------- ours


def train_ours(
    weights: Path, size: Size, case: dict[str, Any], *, steps: int, length: int, rows: int
) -> dict[str, Any]:
    """Train by the engine and the loop of ``mt-train``; ``case["config"]`` is laid over the run's config."""
    from mt_core.events import Control
    from mt_core.nn import TokenObjective
    from mt_core.protocols import StepRecord
    from mt_core.rows import Sample
    from mt_train.data.loader import Position, Window
    from mt_train.loop import Every, LoopHooks, Progress, train

    objective, clock = TokenObjective(), Clock()
    losses: list[float] = []

    def windows() -> Iterator[Window]:
        for step in range(steps):
            drawn = tokens(step, rows, length, size.shape["vocab_size"])
            samples = [[Sample(row.tolist(), [True] * length, "row")] for row in drawn]
            yield Window([objective.collate(samples, length=length).with_index()], (), Position(0, step), 0)

    def on_record(record: StepRecord) -> Control:
        clock.tick()
        losses.append(record.loss)
        return Control()

    hooks = LoopHooks(
        evaluate=None, save=None, on_step_start=lambda *_: None, on_record=on_record, memory_gib=lambda: 0.0
    )
    with built_engine(weights, case.get("config", {}), steps=steps, length=length, rows=rows) as engine:
        clock.last = time.perf_counter()
        never = Every()
        train(
            engine,
            windows(),
            lambda step: 1.0,
            Progress(),
            hooks,
            total_steps=steps,
            eval_every=never,
            save_every=never,
        )
    return clock.result(losses, rows * length)


@contextmanager
def built_engine(
    weights: Path | None,
    changes: dict[str, Any],
    *,
    steps: int,
    length: int,
    rows: int,
    say: Callable[[str], Any] = print,
) -> Iterator[Any]:
    """An engine of ours over these weights, without a command line around it."""
    from mt_core.nn import TokenObjective
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.model import build_engine
    from mt_train.assemble.parts import Parts
    from mt_train.assemble.steps import own_torch_settings
    from mt_train.config.commandline import merge
    from mt_train.engine.plan import make_plan
    from mt_train.engine.processes import Process, join_group
    from mt_train.plugins.resolve import resolve

    raw: dict[str, Any] = {
        "model": {"name": "llama", "weights": str(weights)} if weights else {"name": "llama"},
        "optimizer": {"name": "adamw", "lr": RATE, "weight_decay": DECAY, "beta2": 0.999},
        "train": {"sequence_len": length, "micro_batch_size": rows, "steps": steps},
    }
    parts = Parts.of(resolve(merge(raw, changes), PluginHost.discover()))
    process = Process.from_environment()
    plan = make_plan(parts.config, world=1, device=process.device.type, offers=parts.offers.values())
    with own_torch_settings(parts.config.train, process.device.type), join_group(process, 60) as deepspeed:
        engine = build_engine(parts, TokenObjective(), plan=plan, process=process, deepspeed=deepspeed, say=say)
        yield engine
        engine.close()


# -------------------------------------------------------------------------------------------------------------- Trainer


def nf4() -> Any:
    """The format of ``--quantizer nf4``: blocks of 64, whose scales are quantized too, and products in bf16."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def train_peer(
    weights: Path, size: Size, case: dict[str, Any], *, steps: int, length: int, rows: int
) -> dict[str, Any]:
    """Train by ``transformers.Trainer``; ``case`` may have ``liger``, ``compile``, ``recompute``, ``lora``, ``nf4`` and ``pure_bf16``."""
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    clock = Clock()
    losses: list[float] = []

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return steps * rows

        def __getitem__(self, index: int) -> dict[str, Any]:
            row = tokens(index // rows, rows, length, size.shape["vocab_size"])[index % rows]
            return {"input_ids": row, "labels": row}

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            clock.tick()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))

    options = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=rows,
        learning_rate=RATE,
        weight_decay=DECAY,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        optim="adamw_torch_fused",
        gradient_checkpointing=bool(case.get("recompute")),
        gradient_checkpointing_kwargs={"use_reentrant": False} if case.get("recompute") else None,
        torch_compile=bool(case.get("compile")),
        use_liger_kernel=bool(case.get("liger")),
    )
    dtype = torch.bfloat16 if case.get("pure_bf16") or case.get("lora") else torch.float32
    four_bits = {"quantization_config": nf4(), "device_map": {"": 0}} if case.get("nf4") else {}
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=dtype, attn_implementation="sdpa", **four_bits)
    if case.get("lora"):
        model = with_peft(model, RANK)
    clock.last = time.perf_counter()
    InOrder(model=model, args=options, train_dataset=Rows(), callbacks=[Watch()]).train()
    return clock.result(losses, rows * length)
