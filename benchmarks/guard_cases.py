"""The cases of ``guard.py``, run by the tree that ``PYTHONPATH`` names: processor and wall time of each step, and what was computed.

It asks for public names alone, so that trees of other days run it, and is a plugin of the runs that it measures.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from mt_core import CallbackContext, Component, MtConfig, hookimpl

SHAPE = {"name": "llama", "dim": 256, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 704, "vocab_size": 512}
SEQUENCE, ROWS = 256, 4
PROMPTS, PROMPT_TOKENS = 8, 64
SKIPPED = 2
"""Steps before the clock counts: they allocate, and make the optimizer's state."""

Result = dict[str, list[float]]
"""Seconds of each step (``cpu``, ``wall``), and ``values``: losses, or log-probabilities of tokens."""


class StepClock:
    """Notes the time at the start of each step, and the losses."""

    found: Result
    """Result of the last run that this process has ended."""

    def __init__(self, config: MtConfig) -> None:
        self._marks: list[tuple[float, float]] = []
        self._losses: list[float] = []

    def on_step_start(self, context: CallbackContext) -> None:
        """Note when a step begins."""
        self._marks.append((time.process_time(), time.perf_counter()))

    def on_step_end(self, context: CallbackContext) -> None:
        """Note its loss."""
        assert context.record is not None, "a step that has ended has a record"
        self._losses.append(context.record.loss)

    def on_run_end(self, context: CallbackContext) -> None:
        """Publish what was found. A step lasts until the next one begins, reading its rows and writing its record included."""
        StepClock.found = {**seconds_between(self._marks), "values": self._losses}


@hookimpl
def mt_callbacks() -> list[Component]:
    """Offer the clock."""
    return [Component(name="step-clock", config=MtConfig, build=StepClock, summary="Times each step.")]


def seconds_between(marks: list[tuple[float, float]]) -> Result:
    """Return the seconds from each mark to the next, but the first ones."""
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)][SKIPPED:]
    return {"cpu": [span[0] for span in spans], "wall": [span[1] for span in spans]}


def write_rows(path: Path) -> None:
    """Write documents of many lengths."""
    chance = random.Random(0)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "1.5", "é"]
    rows = [" ".join(chance.choices(words, k=chance.randrange(4, 60))) for _ in range(2_000)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


def train_case(folder: Path, steps: int, **changes: Any) -> Result:
    """Train some steps, in a folder of its own."""
    from mt_train import train

    write_rows(folder / "rows.jsonl")
    batching = changes.pop("batching", "padding")
    raw = {
        "model": SHAPE,
        "dataset": {"name": "jsonl", "path": str(folder / "rows.jsonl")},
        "data": {"eval": None, "cache": None, "batching": batching, "truncation": "right"},
        "train": {"sequence_len": SEQUENCE, "micro_batch_size": ROWS, "global_batch_size": ROWS}
        | {"steps": steps + SKIPPED + 1},
        "eval": {"samples": 0},
        "checkpoint": {"every_steps": 10_000},
        "callbacks": ["step-clock"],
        **changes,
    }
    train(raw, output=folder / "run", plugins=[sys.modules[__name__]])
    return StepClock.found


def decode_case(folder: Path, steps: int) -> Result:
    """Decode a token for each of some rows, as often as there are steps, with a model that was trained a little."""
    from mt_core.generation import SamplingRules
    from mt_train import load_run
    from mt_train.generation import Decoder, Request

    train_case(folder, 1)
    decoder = Decoder(load_run(folder / "run", plugins=[sys.modules[__name__]]), max_rows=PROMPTS)
    chance = random.Random(0)
    for _ in range(PROMPTS):
        ids = [chance.randrange(SHAPE["vocab_size"] // 2) for _ in range(PROMPT_TOKENS)]  # type: ignore[operator]
        decoder.add(Request(ids=ids, most=steps + SKIPPED + 1, top_logprobs=0, rules=SamplingRules(greedy=True)))
    marks, values = [], []
    while decoder.busy:
        marks.append((time.process_time(), time.perf_counter()))
        values += [each.logprob for each in decoder.step() if each.logprob is not None]
    marks.append((time.process_time(), time.perf_counter()))
    return {**seconds_between(marks), "values": values}


CASES: dict[str, Callable[[Path, int], Result]] = {
    "full": train_case,
    "lora": lambda folder, steps: train_case(folder, steps, adapter={"name": "lora", "rank": 8}),
    "packed": lambda folder, steps: train_case(folder, steps, batching="packing"),
    "decode": lambda folder, steps: decode_case(folder, 4 * steps),
}
"""Name → what one process measures. A step of decoding is shorter, so that it has more of them."""
