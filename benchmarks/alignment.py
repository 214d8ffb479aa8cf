"""Cost of DPO: beside TRL's DPOTrainer, and beside fine-tuning on the same tokens.

``--what trl`` (default) prints, for two models, trained whole and as LoRA, the tokens that each side reads in a second of a processor
and its peak memory, in processes of their own, in turn: medians and ratios. Both have the same weights, the same pairs in the same
order, the same optimizer, and the losses of all steps are compared first. TRL runs its reference in every step; ours reads each row once
before the first, which counts. Needs trl and peft.

``--what memory`` compares DPO with ``sft`` on the same tokens of the same rows, two answers to a prompt each: the processor seconds of a
step, the largest sum of all tensors that lived at a time, and the peak of the whole process, which has all imports.

``--what reference`` has the processor seconds of the reference beside those of an epoch of ``sft`` over the same tokens: measured by a
first run, found in the cache by a second one, and read by one that is resumed.

``--what grpo`` is GRPO beside TRL's GRPOTrainer, which writes with transformers: the processor seconds of an iteration (answers, reward,
one optimizer step), the peak memory of the process, and where our seconds go. Both sides have the same weights, prompts, reward and
optimizer; before anything is timed both learn from the same answers, and loss and reward of every step must agree.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from alignment_online import (
    Timer,
    check_same,
    run_online,
    seconds_of_iteration,
    write_online,
)

MODELS = {"tiny, 1 M": (2, 128, 2048), "middle, 21 M": (8, 384, 8192)}
"""Layers, width and vocabulary."""
BATCH, STEPS, RATE, BETA = 4, 12, 1e-4, 0.1
PROMPT, ANSWER, ROUNDS = 60, 196, 6
"""Tokens of a prompt, tokens of an answer with its end, and steps, where DPO and ``sft`` read the same rows of two documents."""
COMPARED, TOLERANCE = 4, 1e-4
"""Steps whose losses must agree, and by how much: later ones drift apart, since AdamW takes the sign of what rounding left."""


def write_model(folder: Path, layers: int, width: int, vocabulary: int) -> None:
    """Write a random Llama as transformers has it, with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<end>": 1, **{f"w{number}": number for number in range(2, vocabulary)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(folder)


def write_adapter(folder: Path) -> None:
    """Write a LoRA with which both sides begin: each would draw another one."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "model"), config).save_pretrained(folder / "lora")


def write_pairs(file: Path, vocabulary: int) -> int:
    """Write the pairs of all steps; returns the tokens of both sides with their end tokens.

    Answers begin with a space: a word that stands on the end of a prompt would be one with its last word.
    """
    chance, tokens = random.Random(0), 0

    def words(least: int, most: int) -> str:
        return " ".join(f"w{chance.randrange(10, vocabulary)}" for _ in range(chance.randint(least, most)))

    with file.open("w", encoding="utf-8") as out:
        for _ in range(BATCH * STEPS):
            row = {"prompt": words(20, 120), "chosen": f" {words(20, 160)}", "rejected": f" {words(20, 160)}"}
            tokens += sum(len(row[name].split()) for name in ("prompt", "prompt", "chosen", "rejected")) + 2
            out.write(json.dumps(row) + "\n")
    return tokens


def write_documents(folder: Path, vocabulary: int) -> int:
    """Write pairs, and their sides as single answers, all of one length: returns the tokens of all sides."""
    chance = random.Random(0)

    def words(count: int) -> str:
        return " ".join(f"w{chance.randrange(10, vocabulary)}" for _ in range(count))

    rows = [
        {"prompt": words(PROMPT), "chosen": f" {words(ANSWER - 1)}", "rejected": f" {words(ANSWER - 1)}"}
        for _ in range(BATCH * ROUNDS)
    ]
    sides = [{"prompt": row["prompt"], "response": row[name]} for row in rows for name in ("chosen", "rejected")]
    for name, written in (("pairs", rows), ("sides", sides)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written), "utf-8")
    return len(sides) * (PROMPT + ANSWER)


def our_config(folder: Path, *, lora: bool = False) -> dict[str, Any]:
    """Return a run of ``dpo`` over the pairs of a folder, without checkpoints on its way."""
    raw: dict[str, Any] = {
        "model": {"name": "llama", "weights": str(folder / "model")},
        "tokenizer": {"name": "huggingface", "path": str(folder / "model")},
        "objective": {"name": "dpo", "beta": BETA},
        "dataset": {"name": "jsonl", "path": str(folder / "pairs.jsonl")},
        "data": {"eval": None, "cache": "none", "shuffle": False},
        "train": {"steps": STEPS, "micro_batch_size": BATCH, "sequence_len": 640, "clip_norm": 1.0},
        "optimizer": {"name": "adamw", "lr": RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0},
        "schedule": "constant",
        "checkpoint": {"every_steps": 10_000},
        "log": {"every_steps": 10_000},
    }
    if lora:
        raw["adapter"] = {"weights": str(folder / "lora")}
    return raw


def train_ours(folder: Path, lora: bool, packed: bool) -> Callable[[], list[float]]:
    """Return what trains through mt_train, and gives the losses."""
    from mt_train import train

    raw = our_config(folder, lora=lora)
    if packed:  # a row of the sequence length holds about two pairs
        raw["data"]["batching"] = "packing"
        raw["train"]["micro_batch_size"] = BATCH // 2

    def run() -> list[float]:
        output = folder / f"run-{time.time_ns()}"
        train(raw, output=output)
        return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]

    return run


def train_theirs(folder: Path, lora: bool, packed: bool) -> Callable[[], list[float]]:
    """Return what trains through TRL, and gives the losses."""
    from datasets import load_dataset
    from peft import PeftModel
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    assert not packed, "TRL pads"
    arguments = DPOConfig(
        str(folder / "trl"),
        beta=BETA,
        bf16=False,
        gradient_checkpointing=False,
        max_length=None,
        report_to="none",
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    rows = load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train", cache_dir=str(folder / "hf"))
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")

    class InOrder(DPOTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    trainer = InOrder(
        model=PeftModel.from_pretrained(model, folder / "lora", is_trainable=True) if lora else model,
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )

    def run() -> list[float]:
        trainer.train()
        return [each["loss"] for each in trainer.state.log_history if "loss" in each]

    return run


def run(side: str, folder: Path, lora: bool) -> dict[str, Any]:
    """Train once in this process: seconds of the processor from before the first row is read to behind the last step."""
    import torch

    torch.set_num_threads(1)
    make = train_theirs if side == "theirs" else train_ours
    began = time.process_time()
    losses = make(folder, lora, side == "ours packed")()
    seconds = time.process_time() - began
    return {"seconds": seconds, "losses": losses, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def document_config(folder: Path, objective: str, *, lora: bool) -> dict[str, Any]:
    """Return a run that reads every row once, two documents of one length in a row of its own."""
    raw = our_config(folder, lora=lora)
    raw["data"]["batching"] = "packing"
    raw["train"] |= {"steps": ROUNDS, "sequence_len": 2 * (PROMPT + ANSWER)}
    if objective == "sft":
        raw |= {"objective": "sft", "dataset": {"name": "jsonl", "path": str(folder / "sides.jsonl")}}
    return raw


def run_documents(side: str, folder: Path, lora: bool) -> dict[str, Any]:
    """Train ``sft`` or ``dpo`` once: seconds of the reference and of all steps, and the peak of the process.

    ``… alive`` has the largest sum of all live tensors instead, as torch's profiler counts it, in the first two steps.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from mt_train import train

    objective, _, alive = side.partition(" ")
    raw, timer = document_config(folder, objective, lora=lora), Timer()
    timer.watch("mt_train.assemble.steps", "with_reference")
    timer.watch("mt_train.assemble.session", "Session.loop")
    if not alive:
        train(raw, output=None)
        return {**timer.seconds, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    raw["train"]["steps"] = 2
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        train(raw, output=None)
    events = seen.profiler.kineto_results.events()
    sizes = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    largest, now = 0, 0
    for _, size in sizes:
        now += size
        largest = max(largest, now)
    assert largest, f"torch {torch.__version__} recorded no memory"
    return {"alive": largest / 2**20}


def run_reference(folder: Path, lora: bool) -> dict[str, Any]:
    """Processor seconds of the reference in a first run, in one that repeats it, and in one that goes on."""
    from mt_train import train

    raw, found = document_config(folder, "dpo", lora=lora), {}
    raw["data"]["cache"] = str(folder / f"cache-{time.time_ns()}")
    timer, output = Timer(), folder / f"run-{time.time_ns()}"
    timer.watch("mt_train.assemble.steps", "with_reference")
    timer.watch("mt_train.assemble.reference", "measure_documents")
    raw["train"]["steps"] = 1
    for name in ("measured", "repeated", "resumed"):
        timer.seconds.clear()
        if name == "resumed":
            train({"train": {"steps": 2}}, resume=output)
        else:
            train(raw, output=output, overwrite=True)
        found[name], found[f"{name}, forwards"] = (
            timer.seconds["with_reference"],
            timer.seconds.get("measure_documents", 0.0),
        )
    return found


def main() -> None:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=list(TABLES), default="trl")
    parser.add_argument("--only", choices=list(MODELS), help="one model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "FOLDER", "LORA"))
    arguments = parser.parse_args()
    if arguments.one:
        side, folder, lora = arguments.one
        print(json.dumps(ONE[arguments.what](side, Path(folder), lora == "lora")), file=sys.__stdout__)  # type: ignore[operator]
        return
    head, compare = TABLES[arguments.what]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name, (layers, width, vocabulary) in MODELS.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_model(folder / "model", layers, width, vocabulary)
            write_adapter(folder)
            tokens = WRITE.get(arguments.what, write_documents)(folder, vocabulary)
            for kind in ("full", "lora"):
                compare(name, kind, folder, tokens, arguments.repeats)  # type: ignore[operator]


def _repeat(what: str, sides: Sequence[str], folder: Path, kind: str, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Return what each side gives in processes of their own, in turn."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, made in found.items():
            made.append(_alone(what, side, folder, kind))
    return found


def _median(made: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(each[name] for each in made)  # type: ignore[no-any-return]


def _compare_memory(name: str, kind: str, folder: Path, tokens: int, repeats: int) -> None:
    found = _repeat("memory", ("sft", "dpo"), folder, kind, repeats)
    alive = {side: _alone("memory", f"{side} alive", folder, kind)["alive"] for side in found}
    step = {side: _median(made, "loop") / ROUNDS for side, made in found.items()}
    memory = {side: _median(made, "mb") for side, made in found.items()}
    for side in found:
        columns = [
            f"{values[side]:,.{digits}f} | {values[side] / values['sft']:.3f}"
            for values, digits in ((step, 2), (alive, 1), (memory, 0))
        ]
        print(f"| {name} | {kind} | {side} | {' | '.join(columns)} |", flush=True)


def _compare_reference(name: str, kind: str, folder: Path, tokens: int, repeats: int) -> None:
    epochs, passes = [], []
    for _ in range(repeats):
        epochs.append(_alone("memory", "sft", folder, kind))
        passes.append(_alone("reference", "dpo", folder, kind))
    epoch = _median(epochs, "loop")
    for each in ("measured", "repeated", "resumed"):
        seconds, forwards = _median(passes, each), _median(passes, f"{each}, forwards")
        print(
            f"| {name} | {kind} | {each} | {seconds:.2f} | {forwards:.2f} | {epoch:.2f} | {seconds / epoch:.3f} |",
            flush=True,
        )


def _compare(name: str, kind: str, folder: Path, tokens: int, repeats: int) -> None:
    found = _repeat("trl", ("ours", "theirs", "ours packed"), folder, kind, repeats)
    ours, theirs = (found[side][0]["losses"][:COMPARED] for side in ("ours", "theirs"))
    apart = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert apart < TOLERANCE, f"the losses differ by {apart:.1e}: nothing is compared"
    speed = {side: tokens / _median(made, "seconds") for side, made in found.items()}
    memory = {side: _median(made, "mb") for side, made in found.items()}
    for side in found:
        print(
            f"| {name} | {kind} | {side} | {speed[side]:,.0f} | {speed[side] / speed['theirs']:.2f} |"
            f" {memory[side]:,.0f} | {memory[side] / memory['theirs']:.2f} |",
            flush=True,
        )
    print(f"<!-- largest difference of a loss: {apart:.1e} -->", flush=True)


def _compare_online(name: str, kind: str, folder: Path, tokens: int, repeats: int, *, objective: str) -> None:
    """Answers of one length and of many, after a check that both sides learn the same from the same answers."""
    recorded = _alone(objective, "ours ragged", folder, kind)
    replayed = _alone(objective, f"theirs ragged {recorded['output']}", folder, kind)
    print(f"<!-- from the same answers: {check_same(recorded, replayed)} -->", flush=True)
    for form in ("equal", "ragged"):
        found = _repeat(objective, (f"ours {form}", f"theirs {form}"), folder, kind, repeats)
        step = {side: seconds_of_iteration(made) for side, made in found.items()}
        memory = {side: _median(made, "mb") for side, made in found.items()}
        for side, made in found.items():
            length = statistics.mean(value for each in made for value in each["answers"][1:])
            columns = [
                f"{values[side]:,.{digits}f} | {values[side] / values[f'theirs {form}']:.2f}"
                for values, digits in ((step, 2), (memory, 0))
            ]
            print(f"| {name} | {kind} | {side} | {length:.1f} | {' | '.join(columns)} | {_shares(made)} |", flush=True)


def _shares(made: Sequence[dict[str, Any]]) -> str:
    """Return the shares of an iteration's parts, of all iterations together; nothing for a side that tells none."""
    if "parts" not in made[0]:
        return ""
    parts = {name: statistics.median(each["parts"].get(name, 0.0) for each in made) for name in PARTS}
    whole = sum(parts.values())
    return ", ".join(f"{shown} {parts[name] / whole:.3f}" for name, shown in PARTS.items() if parts[name])


def _alone(what: str, side: str, folder: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--what", what, "--one", side, str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


PARTS = {"generate": "write", "score_answers": "score", "measure": "measure", "train_step": "update"}
"""Functions of ours that an iteration is made of, and what they are called here."""
WRITE = {"trl": lambda folder, words: write_pairs(folder / "pairs.jsonl", words), "grpo": write_online}
"""Table → what writes its rows."""
ONE = {
    "trl": run,
    "memory": run_documents,
    "reference": lambda side, folder, lora: run_reference(folder, lora),
    "grpo": partial(run_online, "grpo"),
}
"""Table → what one process of it measures."""
TABLES = {
    "trl": (("model", "trained", "side", "tokens per processor second", "ratio", "peak memory, MB", "ratio"), _compare),
    "memory": (
        (
            "model",
            "trained",
            "objective",
            "processor seconds of a step",
            "ratio",
            "live tensors, MB",
            "ratio",
            "process, MB",
            "ratio",
        ),
        _compare_memory,
    ),
    "reference": (
        ("model", "trained", "reference", "processor seconds", "of them forwards", "an epoch of sft", "share"),
        _compare_reference,
    ),
    "grpo": (
        (
            "model",
            "trained",
            "side",
            "tokens of an answer",
            "processor seconds of an iteration",
            "ratio",
            "peak memory, MB",
            "ratio",
            "shares of ours",
        ),
        partial(_compare_online, objective="grpo"),
    ),
}
"""Table → its head, and what prints the lines of a model."""

if __name__ == "__main__":
    main()
