"""DPO beside TRL's DPOTrainer: the same weights, the same pairs in the same order, the same optimizer.

``python benchmarks/alignment.py`` prints, for two models, trained whole and as LoRA, the tokens that each side reads in a second of a
processor and its peak memory, in processes of their own, in turn: medians and ratios. The losses of all steps are compared first.
TRL runs its reference in every step; ours reads each row once before the first, which counts. Needs trl and peft.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = {"tiny, 1 M": (2, 128, 2048), "middle, 21 M": (8, 384, 8192)}
"""Layers, width and vocabulary."""
BATCH, STEPS, RATE, BETA = 4, 12, 1e-4, 0.1
COMPARED, TOLERANCE = 4, 1e-3
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


def write_pairs(file: Path, vocabulary: int) -> int:
    """Write the pairs of all steps; returns the tokens of both sides with their end tokens."""
    chance, tokens = random.Random(0), 0

    def words(least: int, most: int) -> str:
        return " ".join(f"w{chance.randrange(10, vocabulary)}" for _ in range(chance.randint(least, most)))

    with file.open("w", encoding="utf-8") as out:
        for _ in range(BATCH * STEPS):
            row = {"prompt": words(20, 120), "chosen": words(20, 160), "rejected": words(20, 160)}
            tokens += sum(len(row[name].split()) for name in ("prompt", "prompt", "chosen", "rejected")) + 2
            out.write(json.dumps(row) + "\n")
    return tokens


def train_ours(folder: Path, lora: bool, packed: bool) -> Callable[[], list[float]]:
    """Return what trains through mt_train, and gives the losses."""
    from mt_train import train

    raw: dict[str, Any] = {
        "model": {"name": "llama", "weights": str(folder / "model")},
        "tokenizer": {"name": "huggingface", "path": str(folder / "model")},
        "objective": {"name": "dpo", "beta": BETA},
        "dataset": {"name": "jsonl", "path": str(folder / "pairs.jsonl")},
        "data": {"eval": None, "cache": "none", "shuffle": False, "batching": "packing" if packed else "padding"},
        "train": {"steps": STEPS, "micro_batch_size": BATCH, "sequence_len": 640, "clip_norm": 1.0},
        "optimizer": {"name": "adamw", "lr": RATE, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0},
        "schedule": "constant",
        "checkpoint": {"every_steps": 10_000},
        "log": {"every_steps": 10_000},
    }
    if packed:  # a row of the sequence length holds about two pairs
        raw["train"] |= {"micro_batch_size": BATCH // 2}
    if lora:
        raw["adapter"] = {"name": "lora", "rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}

    def run() -> list[float]:
        output = folder / f"run-{time.time_ns()}"
        train(raw, output=output)
        return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]

    return run


def train_theirs(folder: Path, lora: bool, packed: bool) -> Callable[[], list[float]]:
    """Return what trains through TRL, and gives the losses."""
    from datasets import load_dataset
    from peft import LoraConfig
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
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")

    class InOrder(DPOTrainer):
        def _get_train_sampler(self, *given: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
        args=arguments,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        peft_config=adapter if lora else None,
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


def main() -> None:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "FOLDER", "LORA"))
    arguments = parser.parse_args()
    if arguments.one:
        side, folder, lora = arguments.one
        print(json.dumps(run(side, Path(folder), lora == "lora")), file=sys.__stdout__)
        return
    print("| model | trained | side | tokens per processor second | ratio | peak memory, MB | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, (layers, width, vocabulary) in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_model(folder / "model", layers, width, vocabulary)
            tokens = write_pairs(folder / "pairs.jsonl", vocabulary)
            for kind in ("full", "lora"):
                _compare(name, kind, folder, tokens, arguments.repeats)


def _compare(name: str, kind: str, folder: Path, tokens: int, repeats: int) -> None:
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": [], "ours packed": []}
    for _ in range(repeats):
        for side, made in found.items():
            made.append(_run_alone(side, folder, kind))
    ours, theirs = (found[side][0]["losses"][:COMPARED] for side in ("ours", "theirs"))
    apart = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert apart < TOLERANCE, f"the losses differ by {apart:.1e}: nothing is compared"
    speed = {side: tokens / statistics.median(each["seconds"] for each in made) for side, made in found.items()}
    memory = {side: statistics.median(each["mb"] for each in made) for side, made in found.items()}
    for side in found:
        print(
            f"| {name} | {kind} | {side} | {speed[side]:,.0f} | {speed[side] / speed['theirs']:.2f} |"
            f" {memory[side]:,.0f} | {memory[side] / memory['theirs']:.2f} |",
            flush=True,
        )
    print(f"<!-- largest difference of a loss: {apart:.1e} -->", flush=True)


def _run_alone(side: str, folder: Path, kind: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", side, str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
