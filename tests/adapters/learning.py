"""What 200 steps of each adapter are worth: a small Llama that has read English learns to predict Python.

English is the demo corpus, Python the sources of a few modules of the standard library, held out by module: both ship with every
CPython. ``python tests/adapters/learning.py`` writes the table into docs/adapters.md (minutes).

Shapes: B rows, T tokens (bytes).
"""

from __future__ import annotations

import statistics
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from catalogue import TINY, host_of, modules, said, small
from torch import Tensor

from mt_core.assemble.adapted import inject, start
from mt_core.builtin.datasets.demo import DemoDataset
from mt_core.nn import Batch, TrainModel
from mt_core.plugins.resolve import Resolved, resolve
from mt_core.testing.adapter import ALONE, probe_of_run
from mt_core.testing.forward import mean_loss, rows_of
from mt_core.testing.layouts import small_run
from mt_core.testing.plain_training import PlainTraining
from mt_core.testing.weights import filled

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BEGIN, END = "<!-- learning: begin -->", "<!-- learning: end -->"
MODEL = {"name": "llama", **TINY, "dim": 64, "ffn_dim": 128}
TAUGHT, HELD_OUT = ("argparse", "inspect", "typing", "doctest"), ("textwrap", "shlex", "calendar")
ROWS, TOKENS = 8, 128
SEEDS = (0, 1, 2)
STEPS, BASE_STEPS = 200, 500
RATE, MARGIN = 1e-2, 0.15
"""Learning rate, and how far below the frozen base's held-out loss an adapter must end (nats per byte), unless its test says
otherwise (``LEARNING``)."""
DEVIATIONS = 3.0
"""And by how many standard deviations over seeds."""


@dataclass(frozen=True)
class Learned:
    """Held-out losses in nats per byte: the frozen base's, and one for each seed."""

    name: str
    base: float
    after: tuple[float, ...]
    trained: int

    @property
    def gain(self) -> float:
        """On average."""
        return self.base - statistics.mean(self.after)

    @property
    def deviation(self) -> float:
        """Over seeds, of a single run."""
        return statistics.stdev(self.after)

    @property
    def is_enough(self) -> bool:
        """Whether it learns what it must."""
        return self.gain > margin_of(self.name) and self.gain > DEVIATIONS * self.deviation


def asked(name: str, key: str, default: Any) -> Any:
    """What an adapter's own test says of its 200 steps."""
    return said(name, "LEARNING", {}).get(key, default)


def rate_of(name: str) -> float:
    """Learning rate."""
    return float(asked(name, "rate", RATE))


def margin_of(name: str) -> float:
    """Nats per byte."""
    return float(asked(name, "margin", MARGIN))


def text_of(names: tuple[str, ...]) -> Tensor:
    """Bytes of these modules' sources, (N)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return torch.tensor(list("\n".join((folder / f"{name}.py").read_text() for name in names).encode()))


def english() -> Tensor:
    """Bytes of the demo corpus, (N)."""
    demo = DemoDataset()
    return torch.tensor(list("\n".join(demo.row(index)["text"] for index in range(len(demo))).encode()))


def batches(text_N: Tensor, count: int, seed: int) -> Iterator[Batch]:
    """Rows from anywhere in a text."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(text_N) - TOKENS, (ROWS,), generator=generator).tolist()
        yield rows_of(torch.stack([text_N[at : at + TOKENS] for at in starts]), TOKENS)


def held_out_loss(model: TrainModel) -> float:
    """Nats per byte."""
    with torch.no_grad():
        losses = [float(mean_loss(model.eval(), batch)) for batch in batches(text_of(HELD_OUT), 24, seed=99)]
    return statistics.mean(losses)


def resolved_for(adapter: dict[str, Any], module: str, seed: int) -> Resolved:
    """A run with it, as the core reads it."""
    raw = small_run(model=MODEL, adapter=adapter)
    return resolve({**raw, "train": {**raw["train"], "seed": seed}}, host_of(modules()[module]))


@cache
def base_weights() -> dict[str, Tensor]:
    """Of the model that has read English."""
    resolved = resolved_for({"name": "full"}, "lora", 0)
    model = filled(resolved.build("train_model", resolved.config.model.options))
    adapter = inject(resolved, model)
    training = PlainTraining(resolved, model, adapter, rate=3e-3, steps=BASE_STEPS)
    training.run(list(batches(english(), BASE_STEPS, seed=1)))
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def frozen_base(resolved: Resolved) -> TrainModel:
    """It, as a run begins with it."""
    model: TrainModel = resolved.build("train_model", resolved.config.model.options)
    model.load_state_dict(base_weights(), strict=False)
    return model


def learn(name: str) -> Learned:
    """200 steps with each seed."""
    after, base, trained = [], 0.0, 0
    for seed in SEEDS:
        resolved = resolved_for({"name": name, **small(name), **asked(name, "options", {})}, name, seed)
        model = frozen_base(resolved)
        base = held_out_loss(model)
        names = [each for each, _ in model.named_parameters()]
        adapter = inject(resolved, model, probe=lambda run=resolved, whole=model: probe_of_run(run, whole))
        start(resolved, model, names, process=ALONE)
        training = PlainTraining(resolved, model, adapter, rate=rate_of(name), steps=STEPS)
        trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        torch.manual_seed(seed)
        training.run(list(batches(text_of(TAUGHT), STEPS, seed=seed)))
        after.append(held_out_loss(model))
    return Learned(name, base, tuple(after), trained)


def table(found: list[Learned]) -> str:
    """Markdown."""
    head = "| adapter | trained numbers | rate | base | after | gain | deviation | must be above |\n|---|---|---|---|---|---|---|---|"
    lines = [
        f"| `{each.name}` | {each.trained:,} | {rate_of(each.name):g} | {each.base:.3f}"
        f" | {statistics.mean(each.after):.3f} | {each.gain:.3f} | {each.deviation:.3f} | {margin_of(each.name):g} |"
        for each in found
    ]
    return "\n".join([head, *lines])


def write(found: list[Learned]) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write([learn(name) for name in modules()])
