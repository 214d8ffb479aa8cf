"""Text to packed batches, beside the raw encoding of the same tokenizer, and beside ``datasets.map`` with TRL's packing.

    python benchmarks/data.py [--pairs 10] [--rows 20000]

All sides read the same JSON lines, use the same byte-level BPE of 8,000 tokens (trained here on Python's help topics) on one
core, in fresh processes that alternate. Tokens per CPU-second count all threads of the process; imports are not counted.

raw      ``Tokenizer.encode_batch_fast`` on texts that are in memory already: the ids, and nothing else
ours     rows read, checked, encoded, cut to length, packed (best fit) and collated: every batch of one epoch
cached   the same from the token cache, opened anew
peer     ``datasets`` reads and maps the tokenizer in batches, TRL packs (best fit decreasing): every row of one epoch as ids

Needs ``pip install datasets trl`` for the peer; without them it is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LENGTH, ROWS_OF_A_BATCH, VOCABULARY = 1024, 8, 8_000
SIDES = ("raw", "ours", "cached", "peer")


def make(folder: Path, rows: int) -> None:
    """A tokenizer, and rows of 200 to 3,000 characters of English."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    documents = [text for text in topics.values() if text.strip()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    text, chance = "\n".join(documents), random.Random(0)
    with (folder / "rows.jsonl").open("w") as file:
        for _ in range(rows):
            start = chance.randrange(len(text) - 3000)
            file.write(json.dumps({"text": text[start : start + chance.randint(200, 3000)]}) + "\n")


class Clock:
    """Processor time of the whole process."""

    def __init__(self) -> None:
        self.start = time.process_time()

    def rate(self, tokens: int) -> dict[str, float]:
        return {"tokens": tokens, "per_cpu": tokens / (time.process_time() - self.start)}


def raw(folder: Path) -> dict[str, float]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in (folder / "rows.jsonl").open()]
    clock, tokens = Clock(), 0
    for start in range(0, len(texts), 256):
        encoded = tokenizer.encode_batch_fast(texts[start : start + 256], add_special_tokens=False)
        tokens += sum(len(each.ids) for each in encoded)
    return clock.rate(tokens)


def run_config(folder: Path, cache: str | None) -> dict[str, Any]:
    return {
        "model": {
            "name": "llama",
            "dim": 32,
            "n_layers": 1,
            "n_heads": 2,
            "n_kv_heads": 2,
            "vocab_size": VOCABULARY,
            "max_seq_len": LENGTH,
        },
        "tokenizer": {
            "name": "huggingface",
            "path": str(folder / "tokenizer.json"),
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "data": {"eval": None, "cache": cache, "workers": 1},
        "train": {"sequence_len": LENGTH, "micro_batch_size": ROWS_OF_A_BATCH},
    }


def batches(folder: Path, cache: str | None) -> dict[str, float]:
    import mt_core.builtin.objectives.pretrain  # noqa: F401  torch, before the clock starts
    from mt_core.assemble.data import build_data, make_loader
    from mt_core.data.loader import Position
    from mt_core.engine.plan import make_plan
    from mt_core.engine.processes import Process
    from mt_core.plugins.host import PluginHost
    from mt_core.plugins.resolve import resolve

    resolved = resolve(run_config(folder, cache), PluginHost.discover())
    plan, process = make_plan(resolved.config, world=1, device="cpu", offers=[]), Process.from_environment()
    resolved.build("tokenizer", resolved.config.tokenizer.options)  # so is its library
    clock, data = Clock(), build_data(resolved)
    loader, seen = make_loader(resolved.config, data, plan, process), 0
    for window in loader.windows(Position()):
        seen += sum(batch.input_ids.numel() for batch in window.batches)
        if window.after.epoch:
            break
    assert seen >= data.train.report.tokens_total, "every token comes in a batch"
    return clock.rate(data.train.report.tokens_total)


def peer(folder: Path) -> dict[str, float]:
    import datasets
    from transformers import PreTrainedTokenizerFast
    from trl import pack_dataset

    datasets.disable_progress_bars()
    path = str(folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<s>", eos_token="</s>")

    def encoded(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = tokenizer(rows["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        whole = ([tokenizer.bos_token_id, *each, tokenizer.eos_token_id] for each in ids)
        return {"input_ids": [part[at : at + LENGTH] for part in whole for at in range(0, len(part), LENGTH)]}

    clock = Clock()
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train", cache_dir=cache)
        rows = rows.map(encoded, batched=True, remove_columns=rows.column_names)
        packed = pack_dataset(rows, LENGTH, strategy="bfd")
        tokens = sum(len(row["input_ids"]) for row in packed)
    return clock.rate(tokens)


def measure(side: str, folder: Path) -> dict[str, float]:
    if side == "raw":
        return raw(folder)
    if side == "peer":
        return peer(folder)
    return batches(folder, None if side == "ours" else str(folder / "cache"))


def started(side: str, folder: Path, *more: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", side, "--folder", str(folder), *more]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    out = subprocess.run(command, check=True, capture_output=True, env=environment)
    return json.loads(out.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compare(options: argparse.Namespace) -> None:
    has_peer = all(importlib.util.find_spec(name) for name in ("datasets", "trl"))
    sides = SIDES if has_peer else SIDES[:-1]
    found: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started("make", folder, "--rows", str(options.rows))
        started("cached", folder)  # makes the cache
        for _ in range(options.pairs):
            for side, rates in found.items():
                rates.append(started(side, folder)["per_cpu"])
    print(f"{options.rows} rows, {options.pairs} alternating runs of each side; median (min - max)")
    for side, rates in found.items():
        print(
            f"{side:<7} {statistics.median(rates):12,.0f} tokens per CPU-second ({min(rates):,.0f} - {max(rates):,.0f})"
        )
    pairs = [("ours", "raw"), ("ours", "peer"), ("cached", "peer")]
    for one, other in pairs if has_peer else pairs[:1]:
        ratio = statistics.median(a / b for a, b in zip(found[one], found[other], strict=True))
        print(f"{one} / {other}: {ratio:.3f}")
    if not has_peer:
        print("peer left out: pip install datasets trl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="runs of each side, in turn")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of about 1,600 characters")
    parser.add_argument("--side", choices=("make", *SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is None:
        compare(options)
    elif options.side == "make":
        make(options.folder, options.rows)
        print("{}")
    else:
        print(json.dumps(measure(options.side, options.folder)))


if __name__ == "__main__":
    main()
