"""Rows to packed batches, beside the raw encoding of the same tokenizer, and beside ``datasets.map`` with TRL's packing.

    python benchmarks/data.py [--pairs 10] [--rows 20000]

All sides read the same JSON lines and use the same byte-level BPE of 8,000 tokens (trained here on Python's help topics) on one
core, in fresh processes that alternate. Before that, a run of each side shows that all of them hold the same tokens. Tokens per
CPU-second count all threads and processes; imports, and the tokenizer's file, are read before the clock starts.

Three kinds of rows: ``text``, and ``chat`` (one to three questions and answers, written as ChatML, masks from offsets), both out of
half a megabyte of English, whose words come often; and ``code``, Python's own library, of which no row comes twice. Ours looks up
words that came before, which raw encoding does not, so that what is left of a run beside the tokenizer is not told by their ratio:
``--no-words`` leaves that out.

raw      ``Tokenizer.encode_batch_fast`` (chat: ``encode_batch``, which knows offsets, on conversations that are written down
         already) on texts that are in memory: the ids, and nothing else
ours     rows read, checked, written down, encoded, masked, cut to length, packed (best fit) and collated: every batch of one epoch
cached   the same from the token cache, opened anew
peer     ``datasets`` reads and maps the tokenizer in batches, TRL packs (best fit decreasing): every row of one epoch as ids

The last lines are the cost of opening a cached set of ten million rows, and how much of a step a run waits for its rows
(``data_wait_seconds``), in the shapes of ``train_step.py``; ``--waits N`` has only that, of N steps.

Needs ``pip install datasets trl`` for the peer; without
them it is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

LENGTH, ROWS_OF_A_BATCH, VOCABULARY, MANY, WAITS = 1024, 8, 8_000, 10_000_000, 8
NO_WORDS = "MT_BENCHMARK_NO_WORDS"
BEGIN, END, OPEN, CLOSE = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
CASES = {"text": ("raw", "ours", "cached", "peer"), "chat": ("raw", "ours", "cached"), "code": ("raw", "ours")}
RATIOS = [("ours", "raw"), ("ours", "peer"), ("cached", "peer"), ("cached", "raw")]

See = Callable[[Any], None]
"""Told the ids of a row, or of a batch."""


def make(folder: Path, rows: int) -> None:
    """A tokenizer; rows of 200 to 3,000 characters of English, conversations of about as many, and these written down."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    documents = [text for text in topics.values() if text.strip()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), [BEGIN, END, OPEN, CLOSE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    text, chance = "\n".join(documents), random.Random(0)
    write(folder / "code.jsonl", ({"text": part} for part in islice(library(), rows)))

    def said(least: int, most: int) -> str:
        start = chance.randrange(len(text) - most)
        return text[start : start + chance.randint(least, most)]

    def conversation() -> list[dict[str, str]]:
        pairs = ((said(50, 300), said(100, 700)) for _ in range(chance.randint(1, 3)))
        return [
            {"role": role, "content": part} for p in pairs for role, part in zip(("user", "assistant"), p, strict=True)
        ]

    chats = [conversation() for _ in range(rows)]
    write(folder / "text.jsonl", ({"text": said(200, 3000)} for _ in range(rows)))
    write(folder / "chat.jsonl", ({"messages": turns} for turns in chats))
    turns = ("".join(f"{OPEN}{turn['role']}\n{turn['content']}{CLOSE}\n" for turn in chat) for chat in chats)
    write(folder / "chat.written.jsonl", ({"text": BEGIN + text} for text in turns))


def library() -> Iterator[str]:
    """Parts of the sources of Python's library, each of them once."""
    files = sorted(path for path in Path(os.__file__).parent.glob("*/*.py") if path.parent.name != "site-packages")
    known: set[str] = set()
    for path in files:
        content = path.read_text(encoding="utf-8", errors="ignore")
        parts = {content[at : at + 900] for at in range(0, len(content), 900)}
        new = sorted(part for part in parts - known if part.isascii() and part.strip())  # a token a byte at most
        known.update(new)
        yield from new


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


class Clock:
    """Processor time of the process and those that it has started."""

    def __init__(self) -> None:
        self.start = self.now()

    def now(self) -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    def seconds(self) -> float:
        return self.now() - self.start


def read_raw(folder: Path, case: str, see: See) -> float:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file = folder / ("chat.written.jsonl" if case == "chat" else f"{case}.jsonl")
    texts = [json.loads(line)["text"] for line in file.open()]
    encode = tokenizer.encode_batch if case == "chat" else tokenizer.encode_batch_fast
    clock = Clock()
    for start in range(0, len(texts), 256):
        for each in encode(texts[start : start + 256], add_special_tokens=False):
            see(each.ids)
    return clock.seconds()


def run_config(folder: Path, case: str, cache: str | None) -> dict[str, Any]:
    shape = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "vocab_size": VOCABULARY, "max_seq_len": LENGTH}
    special = {"bos_token": BEGIN, "eos_token": END}
    data = {"eval": None, "cache": cache, "workers": 1, "batching": "packing", "truncation": "error"}
    return {
        "model": {"name": "llama", **shape},
        "tokenizer": {"name": "huggingface", "path": str(folder / "tokenizer.json"), **special},
        "dataset": {"name": "jsonl", "path": str(folder / f"{case}.jsonl")},
        "objective": {"name": "sft" if case == "chat" else "pretrain"},
        "data": data | ({"template": "chatml"} if case == "chat" else {}),
        "train": {"sequence_len": LENGTH, "micro_batch_size": ROWS_OF_A_BATCH},
    }


def batches(folder: Path, case: str, cache: str | None, see: See) -> float:
    import mt_plugin_standard.objectives.pretrain  # noqa: F401  torch, before the clock starts
    from mt_core.plugins.host import PluginHost
    from mt_train.assemble.data import build_data, build_tokenizer, make_loader
    from mt_train.assemble.parts import Parts
    from mt_train.data.loader import Position
    from mt_train.engine.plan import make_plan
    from mt_train.engine.processes import Process
    from mt_train.plugins.resolve import resolve

    parts = Parts.of(resolve(run_config(folder, case, cache), PluginHost.discover()))
    plan, process = make_plan(parts.config, world=1, device="cpu", offers=[]), Process.from_environment()
    tokenizer = build_tokenizer(parts)
    if os.environ.get(NO_WORDS):
        tokenizer._words = None  # type: ignore[attr-defined]
    with mock.patch("mt_train.assemble.data.build_tokenizer", return_value=tokenizer):
        clock, data = Clock(), build_data(parts)
        loader, seen = make_loader(parts.config, data, plan, process), 0
        for window in loader.windows(Position()):
            for batch in window.batches:
                seen += batch.input_ids.numel()
                see(batch.input_ids)
            if window.after.epoch:
                break
    assert seen >= data.train.report.tokens_total, "every token comes in a batch"
    return clock.seconds()


def peer(folder: Path, see: See) -> float:
    import datasets
    from transformers import PreTrainedTokenizerFast
    from trl import pack_dataset

    datasets.disable_progress_bars()
    path = str(folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, bos_token=BEGIN, eos_token=END)

    def encoded(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        ids = tokenizer(rows["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        whole = ([tokenizer.bos_token_id, *each, tokenizer.eos_token_id] for each in ids)
        return {"input_ids": [part[at : at + LENGTH] for part in whole for at in range(0, len(part), LENGTH)]}

    clock = Clock()
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", data_files=str(folder / "text.jsonl"), split="train", cache_dir=cache)
        rows = rows.map(encoded, batched=True, remove_columns=rows.column_names)
        for row in pack_dataset(rows, LENGTH, strategy="bfd"):
            see(row["input_ids"])
    return clock.seconds()


def wait(folder: Path, batching: str, steps: int) -> dict[str, float]:
    """Share of the steps, but for the first, that a run of ``train_step.py``'s shapes waits for rows of text; and seconds a step."""
    import train_step as shapes

    run = run_config(folder, "text", None)
    size = {
        "dim": shapes.SHAPE["hidden_size"],
        "n_layers": shapes.SHAPE["num_hidden_layers"],
        "n_heads": 8,
        "n_kv_heads": 4,
    }
    run["model"] |= {**size, "vocab_size": shapes.VOCABULARY, "max_seq_len": shapes.SEQUENCE}
    run["data"] |= {"batching": batching, "truncation": "split"}
    run["train"] = {"sequence_len": shapes.SEQUENCE, "micro_batch_size": shapes.ROWS, "steps": steps}
    config, output = folder / f"{batching}.json", folder / f"run-{batching}"
    config.write_text(json.dumps(run))
    command = [sys.executable, "-m", "mt_train.cli.train", "--config", str(config), "--output", str(output)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = [json.loads(line) for line in next(output.rglob("metrics.jsonl")).open()]
    pairs = list(pairwise(found))
    took = sum((after["tokens"] - before["tokens"]) / after["tokens_per_second"] for before, after in pairs)
    return {"share": sum(after["data_wait_seconds"] for _, after in pairs) / took, "seconds": took / len(pairs)}


def waits(folder: Path, steps: int) -> None:
    for batching in ("padding", "packing"):
        found = run_started(folder, "--side", "wait", "--case", batching, "--waits", str(steps))
        share, seconds = found["share"], found["seconds"]
        print(f"{batching}: {100 * share:.4f}% of a step of {seconds:.2f} s is spent waiting for rows")


def measure(case: str, side: str, folder: Path, see: See) -> float:
    if side == "raw":
        return read_raw(folder, case, see)
    if side == "peer":
        return peer(folder, see)
    return batches(folder, case, None if side == "ours" else str(folder / "cache"), see)


def count_tokens(case: str, side: str, folder: Path) -> dict[str, int]:
    """Return how often each token comes, but for begin, end and padding, which are the first two."""
    import torch

    found: Counter[int] = Counter()
    measure(case, side, folder, lambda ids: found.update(torch.as_tensor(ids).reshape(-1).tolist()))
    return {str(token): count for token, count in sorted(found.items()) if token > 1}


def time_opening(folder: Path) -> dict[str, float]:
    """Seconds and MiB that it takes to open a cached set of ten million rows of eight tokens, and to take its first batch."""
    import numpy as np

    from mt_core.nn import TokenObjective
    from mt_train.data.cache_folder import open_samples
    from mt_train.data.cache_index import HASHES, KNOWN, META
    from mt_train.data.chunk_files import HASH
    from mt_train.data.columns import COLUMNS, dtype_of
    from mt_train.data.loader import make_batch

    place = folder / "many"
    place.mkdir()
    sizes = {"ids": 8 * MANY, "trained": 8 * MANY, "row_ids": MANY, "weighted": 0, "weights": 0, "weight_ends": 1}
    for name in COLUMNS:  # files with holes, but for the offsets
        with (place / name).open("wb") as file:
            if name in ("ends", "row_id_ends"):
                np.arange(0, MANY + 1, dtype=dtype_of(name)).__imul__(8 if name == "ends" else 1).tofile(file)
            else:
                file.truncate(sizes[name] * dtype_of(name).itemsize)
    for name in (HASHES, KNOWN):
        np.arange(MANY, dtype=HASH).tofile(place / name)
    report = {"rows_read": MANY, "rows_kept": MANY, "rows_dropped": {}, "samples": MANY, "highest_id": 7}
    (place / META).write_text(json.dumps({"report": report, "fingerprint": {"sha256": "known"}}))
    before, start = resident_mib(), time.perf_counter()
    samples = open_samples(place)
    make_batch(samples, TokenObjective(), [(0, MANY - 1)], LENGTH)
    return {"seconds": time.perf_counter() - start, "mib": resident_mib() - before}


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_started(folder: Path, *words: str) -> Any:
    command = [sys.executable, __file__, "--folder", str(folder), *words]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(out.stdout.splitlines()[-1])


def compare(folder: Path, case: str, sides: list[str], pairs: int) -> None:
    """The table of one kind of rows."""
    first = run_started(folder, "--case", case, "--side", "ours", "--count")
    for side in (side for side in sides if side != "ours"):  # and makes the cache
        assert run_started(folder, "--case", case, "--side", side, "--count") == first, (
            f"{side} has other tokens than ours"
        )
    tokens = sum(first.values())
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(pairs):
        for side, rates in found.items():
            rates.append(tokens / run_started(folder, "--case", case, "--side", side))
    print(f"{case}: {tokens:,} tokens, the same on all sides; {pairs} alternating runs of each; median (min - max)")
    for side, rates in found.items():
        middle = statistics.median(rates)
        print(f"  {side:<7} {middle:12,.0f} tokens per CPU-second ({min(rates):,.0f} - {max(rates):,.0f})")
    for one, other in (pair for pair in RATIOS if set(pair) <= set(sides)):
        ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
        print(f"  {one} / {other}: {statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})")


def tables(options: argparse.Namespace) -> None:
    has_peer = all(importlib.util.find_spec(name) for name in ("datasets", "trl"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_started(folder, "--side", "make", "--rows", str(options.rows))
        if options.waits:
            waits(folder, options.waits)
            return
        print(f"{options.rows} rows of each kind")
        for case, sides in CASES.items():
            compare(folder, case, [side for side in sides if has_peer or side != "peer"], options.pairs)
        opened = run_started(folder, "--side", "open")
        print(f"a cached set of {MANY:,} rows: opened in {opened['seconds']:.3f} s, {opened['mib']:.1f} MiB of memory")
        waits(folder, options.waits or WAITS)
    if not has_peer:
        print("peer left out: pip install datasets trl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="runs of each side, in turn")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of about 1,600 characters")
    parser.add_argument("--waits", type=int, help="only how long a run waits for its rows, of so many steps")
    for name in ("--case", "--side"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--no-words", action="store_true", help="ours does not look up words that came before")
    options = parser.parse_args()
    if options.no_words:
        os.environ[NO_WORDS] = "1"  # of the processes that are started too
    if options.side is None:
        tables(options)
    elif options.side == "make":
        make(options.folder, options.rows)
        print("{}")
    elif options.side == "wait":
        print(json.dumps(wait(options.folder, options.case, options.waits)))
    elif options.side == "open":
        print(json.dumps(time_opening(options.folder)))
    elif options.count:
        print(json.dumps(count_tokens(options.case, options.side, options.folder)))
    else:
        print(json.dumps(measure(options.case, options.side, options.folder, lambda ids: None)))


if __name__ == "__main__":
    main()
