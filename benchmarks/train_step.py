"""One training step on a CPU, beside ``transformers.Trainer``.

    python benchmarks/train_step.py [--pairs 5] [--steps 6] [--compile] [--lora] [--dtype bf16]

Both sides train the same random weights on the same random tokens with the same optimizer, in fresh processes that
alternate. Their losses must agree to 1e-4 before anything is printed. Tokens per CPU-second count the processor time of
all threads, which a busy neighbour disturbs less than wall time; memory is the peak resident size of the whole process.
Needs ``pip install accelerate`` for the Trainer.

Where our runs set torch's fp32 products (``mt_train.assemble.matmul``), a third side is the Trainer with the same setting. ``--dtype
bf16`` is our mixed precision beside the Trainer's ``bf16=True`` (with LoRA over a base that is loaded in bf16): losses then agree to 1e-2.

``--type mistral`` (``olmo2``, ``qwen3_moe``, …) takes another model type of transformers, and ``--family NAME`` the family of ours that
reads it; the default is the one that ``config.json`` names.

``--lora`` trains LoRA of rank 8 on all linear layers instead, beside the Trainer with ``peft`` (which must be installed), from
the same first values. ``--variants lora,dora,…`` prints what a step of other adapters costs relative to ``lora``, alternating.

``--masters`` trains in bf16 with masters of our own and with DeepSpeed's, alternating, and prints the second relative to the first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SEQUENCE, ROWS, VOCABULARY = 512, 4, 32_000
SHAPE = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
SHAPE |= {"intermediate_size": 1408, "vocab_size": VOCABULARY, "max_position_embeddings": SEQUENCE}
MORE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 352, "head_dim": 64},
}
"""Type → values of its own."""
RATE, DECAY = 1e-3, 0.1
RANK = 8
SKIPPED = 1
"""Steps before the clock starts: the first one allocates."""


class Clock:
    """Processor and wall time from the end of the skipped steps to the end of the last."""

    def __init__(self) -> None:
        self.step = 0
        self.start = self.end = (0.0, 0.0)

    def tick(self) -> None:
        self.step += 1
        now = time.process_time(), time.perf_counter()
        if self.step == SKIPPED:
            self.start = now
        self.end = now

    def result(self, losses: list[float]) -> dict[str, Any]:
        tokens = (self.step - SKIPPED) * SEQUENCE * ROWS
        cpu, wall = (after - before for after, before in zip(self.end, self.start, strict=True))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"losses": losses, "per_cpu": tokens / cpu, "per_second": tokens / wall, "mib": memory}


def tokens(step: int) -> Any:
    import torch

    return torch.randint(0, VOCABULARY, (ROWS, SEQUENCE), generator=torch.Generator().manual_seed(step))


def make_weights(folder: Path, kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE, **MORE.get(kind, {}))).save_pretrained(folder)


def with_peft(model: Any, rank: int = RANK) -> Any:
    """LoRA as ``--adapter lora`` has it: the same projections, scale and first values."""
    import torch
    from peft import LoraConfig, get_peft_model

    from mt_core.adapters import uniform
    from mt_core.nn import tensor_generator

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name.endswith("lora_A.default.weight"):
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.default.weight")
                parameter.copy_(uniform(parameter.cpu().float(), tensor_generator(0, module)))
    return adapted


def our_products() -> str:
    """The setting of fp32 products that a run of ours has on this machine."""
    from mt_train.assemble.matmul import matmul_precision

    return matmul_precision("cpu", tf32=False)


def peer(weights: Path, steps: int, compiled: bool, adapter: str | None, dtype: str, products: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

    torch.set_float32_matmul_precision(products)

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return steps * ROWS

        def __getitem__(self, index: int) -> dict[str, Any]:
            row = tokens(index // ROWS)[index % ROWS]
            return {"input_ids": row, "labels": row}

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    clock, losses = Clock(), []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            clock.tick()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            if logs and "loss" in logs:
                losses.append(float(logs["loss"]))

    options = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        learning_rate=RATE,
        weight_decay=DECAY,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        torch_compile=compiled,
        bf16=dtype == "bf16",
    )
    is_half = dtype == "bf16" and adapter is not None
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16 if is_half else torch.float32)
    if adapter is not None:
        model = with_peft(model)
    InOrder(model=model, args=options, train_dataset=Rows(), callbacks=[Watch()]).train()
    return clock.result(losses)


def ours(
    weights: Path, steps: int, compiled: bool, adapter: str | None, dtype: str, family: str | None, masters: str | None
) -> dict[str, Any]:
    from mt_core.events import Control
    from mt_core.nn import TokenObjective
    from mt_core.plugins.host import PluginHost
    from mt_core.protocols import StepRecord
    from mt_core.rows import Sample
    from mt_train.assemble.model import build_engine
    from mt_train.assemble.parts import Parts
    from mt_train.data.loader import Position, Window
    from mt_train.engine.plan import make_plan
    from mt_train.engine.processes import Process, join_group
    from mt_train.loop import Every, LoopHooks, Progress, train
    from mt_train.plugins.resolve import resolve

    optimizer = {"name": "adamw", "lr": RATE, "weight_decay": DECAY, "beta2": 0.999}
    raw = {
        "adapter": adapter or "full",
        "model": {"name": family, "weights": str(weights)},
        "optimizer": optimizer,
        "train": {"sequence_len": SEQUENCE, "micro_batch_size": ROWS, "steps": steps, "compile": compiled}
        | {"dtype": dtype},
    }
    if masters is not None:
        raw["train"]["dtype"], raw["parallel"] = "bf16", {"masters": masters}  # type: ignore[index]
    parts = Parts.of(resolve(raw, PluginHost.discover()))
    process, objective = Process.from_environment(), TokenObjective()
    plan = make_plan(parts.config, world=1, device="cpu", offers=parts.offers.values())

    def windows() -> Iterator[Window]:
        for step in range(steps):
            rows = [[Sample(row.tolist(), [True] * SEQUENCE, "row")] for row in tokens(step)]
            yield Window([objective.collate(rows, length=SEQUENCE).with_index()], (), Position(0, step), 0)

    clock, losses = Clock(), []

    def on_record(record: StepRecord) -> Control:
        clock.tick()
        losses.append(record.loss)
        return Control()

    hooks = LoopHooks(
        evaluate=None,
        save=None,
        on_step_start=lambda progress, window: None,
        on_record=on_record,
        memory_gib=lambda: 0.0,
    )
    with join_group(process, 60) as deepspeed:
        engine = build_engine(parts, objective, plan=plan, process=process, deepspeed=deepspeed, say=lambda text: None)
        train(
            engine,
            windows(),
            lambda k: 1.0,
            Progress(),
            hooks,
            total_steps=steps,
            eval_every=Every(),
            save_every=Every(),
        )
    return clock.result(losses)


def measure(side: str, weights: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One fresh process of one side."""
    command = [sys.executable, __file__, "--side", side, "--weights", str(weights), "--steps", str(options.steps)]
    command += ["--dtype", options.dtype]
    command += ["--adapter", options.adapter] if options.adapter else []
    command += ["--compile"] if options.compile and side == "ours" else []
    command += ["--family", options.family] if options.family else []
    command += ["--masters-of", options.masters_of] if options.masters_of else []
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ})
    return json.loads(out.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@contextmanager
def random_weights(kind: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--side", "make", "--weights", folder, "--type", kind]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        yield Path(folder)


def compare_variants(options: argparse.Namespace, names: list[str], key: str) -> None:
    """CPU-seconds of a step and peak memory of each adapter, or of who keeps masters, relative to the first."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with random_weights(options.type) as weights:
        for _ in range(options.pairs):
            for name in names:
                setattr(options, key, name)
                results[name].append(measure("ours", weights, options))
    for name in names:
        pairs = list(zip(results[names[0]], results[name], strict=True))
        step = statistics.median(first["per_cpu"] / other["per_cpu"] for first, other in pairs)
        memory = statistics.median(other["mib"] / first["mib"] for first, other in pairs)
        print(f"{name:<16} step {step:5.2f} x {names[0]}   peak memory {memory:5.2f} x")
        steps = [SEQUENCE * ROWS / other["per_cpu"] for _, other in pairs]
        peaks = [other["mib"] for _, other in pairs]
        print(f"  CPU-seconds a step {statistics.median(steps):.2f} ({min(steps):.2f} - {max(steps):.2f})")
        print(f"  peak MiB {statistics.median(peaks):.0f} ({min(peaks):.0f} - {max(peaks):.0f})")
        print(f"  losses {pairs[-1][1]['losses']}")


def compare(options: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    products = our_products()
    if options.dtype == "fp32" and products != "highest":
        results["same"] = []
    with random_weights(options.type) as weights:
        for _ in range(options.pairs):
            for side, found in results.items():
                found.append(measure(side, weights, options))
    most = 1e-4 if options.dtype == "fp32" else 1e-2
    for ours_, *others in zip(*results.values(), strict=True):
        for peer_ in others:
            far = max(abs(a - b) / b for a, b in zip(ours_["losses"], peer_["losses"], strict=True))
            assert far < most, f"the sides compute different things: {ours_['losses']} and {peer_['losses']}"
    print(
        f"losses agree; {options.pairs} alternating pairs of {options.steps} steps, {options.dtype}, median (min - max)"
    )
    print(f"fp32 products of our runs here: {products!r}; same is the Trainer with that setting" * ("same" in results))
    for key, title in (("per_cpu", "tokens per CPU-second"), ("per_second", "tokens per second"), ("mib", "peak MiB")):
        rows = {side: [result[key] for result in found] for side, found in results.items()}
        ratios = {
            side: statistics.median(a / b for a, b in zip(rows["ours"], rows[side], strict=True))
            for side in list(rows)[1:]
        }
        shown = "   ".join(
            f"{side} {statistics.median(v):8.1f} ({min(v):.1f} - {max(v):.1f})" for side, v in rows.items()
        )
        print(f"{title:<22} {shown}   " + ", ".join(f"ours / {side} {ratio:.3f}" for side, ratio in ratios.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps of each process")
    parser.add_argument("--compile", action="store_true", help="our side with train.compile")
    parser.add_argument("--lora", dest="adapter", action="store_const", const="lora", help="LoRA beside peft's")
    parser.add_argument("--variants", help="adapters of ours, by name; the first is what the others are relative to")
    parser.add_argument("--type", default="llama", help="model type of transformers")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="precision of both sides")
    parser.add_argument("--family", help="family of ours that reads it (default: the one that config.json names)")
    parser.add_argument("--masters", action="store_true", help="bf16 with masters of our own, and with DeepSpeed's")
    parser.add_argument("--masters-of", choices=("auto", "deepspeed"), help=argparse.SUPPRESS)
    parser.add_argument("--adapter", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "peer", "same", "make"), help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None and options.variants:
        compare_variants(options, options.variants.split(","), "adapter")
    elif options.side is None and options.masters:
        compare_variants(options, ["auto", "deepspeed"], "masters_of")
    elif options.side is None:
        compare(options)
    elif options.side == "make":
        make_weights(options.weights, options.type)
    elif options.side == "ours":
        given = (options.compile, options.adapter, options.dtype, options.family, options.masters_of)
        print(json.dumps(ours(options.weights, options.steps, *given)))
    else:
        products = our_products() if options.side == "same" else "highest"
        side = peer(options.weights, options.steps, options.compile, options.adapter, options.dtype, products)
        print(json.dumps(side))


if __name__ == "__main__":
    main()
