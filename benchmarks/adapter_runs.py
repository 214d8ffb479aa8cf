"""A small Llama that has read English learns to predict Python, with every adapter (``tests/adapters/learning.py``).

Each has about as many trained numbers as LoRA of rank 8. Its learning rate is chosen on seed 0 by the loss on modules that are
neither trained on nor reported: 3e-3 and 1e-2 are tried, and while the best is at an end of what was tried, the next rate there.
Then it trains with every seed at that rate.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "adapters"))

import torch
from adapter_page import LORA
from adapter_sizes import RANK, counter, size_of
from catalogue import WHOLE
from learning import (
    BASE_RATE,
    BASE_STEPS,
    HELD_OUT,
    ROWS,
    STEPS,
    TAUGHT,
    TOKENS,
    VALIDATED,
    Task,
    begin,
    english,
    frozen_base,
    loss_on,
    parts_for,
    teach,
    text_of,
    trained_numbers,
)

TASK = Task(dim=64, ffn_dim=128, n_layers=4, rows=4)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
SCHEDULE = "cosine"
FIRST = RATES[3:5]
"""Rates that may be tried, and those that are."""


def settings() -> dict[str, Any]:
    """What every row has been made with; a file with others is not added to."""
    texts = {"english": english(), **{part: text_of(names) for part, names in _TEXTS.items()}}
    return {
        "model": TASK.model,
        "modules": {part: list(names) for part, names in _TEXTS.items()},
        "texts": {part: hashlib.sha256(bytes(text.tolist())).hexdigest()[:16] for part, text in texts.items()},
        "base": {"steps": BASE_STEPS, "rate": BASE_RATE, "rows": ROWS},
        "rows": TASK.rows,
        "tokens": TOKENS,
        "steps": STEPS,
        "schedule": SCHEDULE,
        "rates": list(FIRST),
        "sized_after": {"adapter": LORA, "rank": RANK},
    }


_TEXTS = {"taught": TAUGHT, "validated": VALIDATED, "held_out": HELD_OUT}


class Results:
    """The file. Each run is in it as soon as it has ended; several processes may add to it, each with adapters of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own: dict[str, dict[str, Any]] = {}
        self.all: dict[str, Any] = self._read()

    def begin(self) -> None:
        """Raises ``SystemExit`` for a file that was made with other settings."""
        here = settings()
        if (there := self.all.get("settings", here)) != here:
            other = ", ".join(key for key in here if there.get(key) != here[key])
            raise SystemExit(
                f"{self.path} was made with another {other}; move it away, or use the Python that it was made with"
            )
        self.all["settings"] = here
        self.all.setdefault("versions", {"python": platform.python_version(), "torch": torch.__version__})
        self.all["versions"]["mt-core"] = version("mt-core")
        if "base" not in self.all:
            self.all["base"] = _base()
        self.save()

    def of(self, name: str) -> dict[str, Any]:
        """What is known of one by now; from here on this process adds to it."""
        return self.own.setdefault(name, self._read().get("adapters", {}).get(name, {}))

    def save(self) -> None:
        """All of it, or nothing; what others have added stays."""
        self.path.parent.mkdir(exist_ok=True)
        with _alone_in(self.path.parent):
            self.all["adapters"] = {**self._read().get("adapters", {}), **self.own}
            staged = self.path.with_suffix(".tmp")
            staged.write_text(json.dumps(self.all, indent=1, sort_keys=True) + "\n")
            os.replace(staged, self.path)

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Other processes that ask for the same wait."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _base() -> dict[str, Any]:
    model = frozen_base(TASK, parts_for(TASK, WHOLE, {}, 0))
    return {
        "weights": sum(each.numel() for each in model.parameters()),
        "loss": round(loss_on(HELD_OUT, model), 6),
        "wanted": counter(TASK, LORA)({"rank": RANK}),
    }


def compare(results: Results, name: str, seeds: int) -> None:
    """Everything that the file does not have of an adapter."""
    found = results.of(name)
    if "options" not in found:
        size = size_of(TASK, name, results.all["base"]["wanted"]) if name != WHOLE else None
        found["options"] = dict(size.options) if size else {}
    found.setdefault("tried", {})
    found.setdefault("runs", {})
    while (rate := next_rate({float(key): each["validated"] for key, each in found["tried"].items()})) is not None:
        found["tried"][f"{rate:g}"] = run(name, found["options"], rate, seed=0)
        results.save()
    found["rate"] = best(found["tried"])
    found["runs"]["0"] = found["tried"][f"{found['rate']:g}"]
    for seed in range(1, seeds):
        if str(seed) not in found["runs"]:
            found["runs"][str(seed)] = run(name, found["options"], found["rate"], seed)
            results.save()
    results.save()


def next_rate(tried: dict[float, float | None]) -> float | None:
    """The one to try next: the first ones, then on from the best while it is at an end (down while all
    diverge); none when it is not."""
    if missing := [rate for rate in FIRST if rate not in tried]:
        return missing[0]
    losses = {rate: tried[rate] if tried[rate] is not None else float("inf") for rate in tried}
    at = RATES.index(min(losses, key=lambda rate: (losses[rate], rate)))
    return next((RATES[i] for i in (at - 1, at + 1) if 0 <= i < len(RATES) and RATES[i] not in tried), None)


def best(tried: dict[str, dict[str, Any]]) -> float:
    """The rate with the least loss on what rates are chosen by."""
    finite = {float(rate): each["validated"] for rate, each in tried.items() if each["validated"] is not None}
    return min(finite, key=lambda rate: finite[rate]) if finite else FIRST[0]


def run(name: str, options: dict[str, Any], rate: float, seed: int) -> dict[str, Any]:
    """One training: losses in nats per byte, none where it diverged."""
    training = begin(TASK, name, options, rate=rate, seed=seed, schedule=SCHEDULE)
    diverged = teach(TASK, training, seed)
    if diverged is not None:
        return {"trained": trained_numbers(training.model), "validated": None, "loss": None, "diverged": diverged}
    validated, loss = (round(loss_on(part, training.model), 6) for part in (VALIDATED, HELD_OUT))
    return {"trained": trained_numbers(training.model), "validated": validated, "loss": loss}


def summary(found: dict[str, Any]) -> str:
    """A line: trained numbers, the rate, the mean loss, and what was tried."""
    losses = [each["loss"] for each in found["runs"].values() if each["loss"] is not None]
    rates = ", ".join(f"{rate}: {each['validated']}" for rate, each in found["tried"].items())
    mean = f"{statistics.mean(losses):.3f}" if losses else "diverged"
    return f"{found['runs']['0']['trained']:>7,} at {found['rate']:g}: {mean}   ({rates})"
