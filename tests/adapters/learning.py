"""What a few hundred steps of an adapter are worth: a small Llama that has read English learns to predict Python.

English is the demo corpus, Python the sources of a few modules of the standard library, held out by module: both ship with every
CPython. ``test_learning.py`` asks a margin of each adapter, ``benchmarks/adapters.py`` compares them all.

Shapes: B rows, T tokens (bytes), N bytes of a text.
"""

from __future__ import annotations

import math
import statistics
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from catalogue import TINY, constant_of, host_of, modules, small_options
from torch import Tensor

from mt_conformance.adapter_model import single_process
from mt_conformance.forward import mean_loss, rows_of
from mt_conformance.layouts import small_run
from mt_conformance.plain_training import PlainTraining
from mt_conformance.weights import fill_weights
from mt_core import Adapter
from mt_core.nn import Batch, TokenObjective, TrainModel
from mt_plugin_standard.datasets.demo import DemoDataset
from mt_train.assemble.injection import inject, start
from mt_train.assemble.parts import Parts
from mt_train.assemble.probe import ModelProbe
from mt_train.data.loader import Position, Window
from mt_train.plugins.resolve import resolve

TAUGHT, HELD_OUT = ("argparse", "inspect", "typing", "doctest"), ("textwrap", "shlex", "calendar")
VALIDATED = ("difflib", "pprint")
"""What a learning rate is chosen by, where it is chosen."""
ROWS, TOKENS, LOOKED_AT = 8, 128, 24
"""Rows of a batch, their bytes, and the batches that a loss is measured on."""
SEEDS = (0, 1, 2)
BASE_STEPS, BASE_RATE = 500, 3e-3
STEPS = 200
RATE, MARGIN = 1e-2, 0.15
"""Learning rate, and how far below the frozen base's held-out loss an adapter must end (nats per byte), unless its test says
otherwise (``LEARNING``)."""
DEVIATIONS = 3.0
"""And by how many standard deviations over seeds."""


@dataclass(frozen=True)
class Task:
    """The shape of the model, how many steps it has read English before there is an adapter, and rows of a batch after that."""

    dim: int = 64
    ffn_dim: int = 128
    n_layers: int = 2
    base_steps: int = BASE_STEPS
    rows: int = ROWS

    @property
    def model(self) -> dict[str, Any]:
        """As in ``run.yaml``."""
        return {"name": "llama", **TINY, "dim": self.dim, "ffn_dim": self.ffn_dim, "n_layers": self.n_layers}


@dataclass(frozen=True)
class LearningResult:
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
        """Return whether it learns what it must."""
        return self.gain > float(option_of(self.name, "margin", MARGIN)) and self.gain > DEVIATIONS * self.deviation


def option_of(name: str, key: str, default: Any) -> Any:
    """What an adapter's own test says of its 200 steps."""
    return constant_of(name, "LEARNING", {}).get(key, default)


@cache
def text_of(names: tuple[str, ...]) -> Tensor:
    """Bytes of these modules' sources, (N)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return torch.tensor(list("\n".join((folder / f"{name}.py").read_text() for name in names).encode()))


@cache
def english() -> Tensor:
    """Bytes of the demo corpus, (N)."""
    demo = DemoDataset()
    return torch.tensor(list("\n".join(demo.row(index)["text"] for index in range(len(demo))).encode()))


def batches(text_N: Tensor, count: int, seed: int, rows: int = ROWS) -> Iterator[Batch]:
    """Rows from anywhere in a text."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(len(text_N) - TOKENS, (rows,), generator=generator).tolist()
        yield rows_of(torch.stack([text_N[at : at + TOKENS] for at in starts]), TOKENS)


def loss_on(names: tuple[str, ...], model: TrainModel) -> float:
    """Nats per byte."""
    with torch.no_grad():
        losses = [float(mean_loss(model.eval(), batch)) for batch in batches(text_of(names), LOOKED_AT, seed=99)]
    return statistics.mean(losses)


def parts_for(task: Task, name: str, options: Mapping[str, Any], seed: int, *, schedule: Any = "constant") -> Parts:
    """A run with an adapter, as the core reads it."""
    raw = small_run(model=task.model, adapter={"name": name, **options}, schedule=schedule)
    return Parts.of(
        resolve({**raw, "train": {**raw["train"], "seed": seed}}, host_of(modules().get(name, modules()["lora"])))
    )


@cache
def base_weights(task: Task) -> dict[str, Tensor]:
    """Of the model that has read English."""
    parts = parts_for(task, "full", {}, 0)
    model = fill_weights(parts.model())
    adapter = inject(parts, model)
    training = PlainTraining(parts, model, adapter, rate=BASE_RATE, steps=task.base_steps)
    training.run(list(batches(english(), task.base_steps, seed=1)))
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def frozen_base(task: Task, parts: Parts) -> TrainModel:
    """It, as a run begins with it."""
    model = parts.model()
    model.load_state_dict(base_weights(task), strict=False)
    return model


def python(task: Task, seed: int) -> Iterator[Batch]:
    """What a run learns from."""
    return batches(text_of(TAUGHT), STEPS, seed, task.rows)


class TaughtRows:
    """The run's rows from its first, in the place of a loader, for adapters that look at them before it begins."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    def windows(self, position: Position) -> Iterator[Window]:
        """A batch each."""
        for batch in python(self._task, self._seed):
            yield Window([batch], (), position, position.epoch)


def probe_of_rows(task: Task, model: TrainModel, seed: int) -> ModelProbe:
    """What looks at them."""
    return ModelProbe(model, TokenObjective(), TaughtRows(task, seed), single_process())  # type: ignore[arg-type]


def begin(
    task: Task, name: str, options: Mapping[str, Any], *, rate: float, seed: int, schedule: str = "constant"
) -> PlainTraining:
    """An adapter in the base, before its first step; ``schedule`` unless its test names another."""
    parts = parts_for(task, name, options, seed, schedule=option_of(name, "schedule", schedule))
    model = frozen_base(task, parts)
    names = [each for each, _ in model.named_parameters()]
    adapter: Adapter = inject(parts, model, probe=lambda: probe_of_rows(task, model, seed))
    start(parts, model, adapter, names, process=single_process())
    factor = parts.schedule(STEPS)
    return PlainTraining(parts, model, adapter, rate=rate, steps=STEPS, schedule=factor)


def teach(task: Task, training: PlainTraining, seed: int) -> int | None:
    """Take its steps; the first one without a finite loss, where there was one."""
    torch.manual_seed(seed)
    for step, batch in enumerate(python(task, seed), start=1):
        try:
            [loss] = training.run([batch])
        except torch.linalg.LinAlgError:  # a decomposition of what is not finite
            return step
        if not math.isfinite(loss):
            return step
    return None


def trained_numbers(model: TrainModel) -> int:
    """Return how many are trained; those that several layers share count once."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def learn(name: str) -> LearningResult:
    """200 steps with each seed."""
    task, after, trained = Task(), [], 0
    options = {**small_options(name), **option_of(name, "options", {})}
    for seed in SEEDS:
        training = begin(task, name, options, rate=float(option_of(name, "rate", RATE)), seed=seed)
        trained = trained_numbers(training.model)
        diverged = teach(task, training, seed)
        after.append(math.inf if diverged else loss_on(HELD_OUT, training.model))
    base = loss_on(HELD_OUT, frozen_base(task, parts_for(task, "full", {}, 0)))
    return LearningResult(name, base, tuple(after), trained)
