"""Processor time of an optimizer's step and the state that it keeps, beside the library that it was compared with.

    python benchmarks/optim.py [--pairs 5] [--steps 10] [--only lion,soap]

Both sides update the same weights with the same gradients, in one process, alternating which goes first; the ratio is the
median of the pairs' ratios. CPU-seconds count all threads. State bytes are those of all tensors that the optimizer keeps, for each number
of the weights. Needs ``pip install pytorch-optimizer schedulefree galore-torch apollo-torch bitsandbytes torchao``. What updates while
gradients arrive is measured with all of them there; theirs is called as their hooks call it. torchao's is compiled, ours is not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from mt_core import GradientTransform, split_decay
from mt_plugin_optim.optimizers import OPTIMIZERS
from mt_plugin_optim.policy import split_hidden, transform_all

WIDTH, HIDDEN, VOCABULARY = 384, 1024, 4096
SHAPES = {
    "embed.weight": (VOCABULARY, WIDTH),
    **{f"layers.{i}.attention.weight": (WIDTH, WIDTH) for i in range(4)},
    **{f"layers.{i}.up.weight": (HIDDEN, WIDTH) for i in range(4)},
    **{f"layers.{i}.down.weight": (WIDTH, HIDDEN) for i in range(4)},
    **{f"layers.{i}.norm.weight": (WIDTH,) for i in range(4)},
}
Made = Any
Groups = list[dict[str, Any]]


def library(module: str, name: str, **options: Any) -> Callable[[Groups], Made]:
    def make(groups: Groups) -> Made:
        made = getattr(import_module(module), name)(groups, **options)
        if hasattr(made, "train"):
            made.train()
        return made

    return make


def soap(groups: Groups) -> Made:
    """Rotates what ours rotates, and nothing else."""
    for group in groups:
        group["max_precondition_dim"] = 10_000 if group["transformed"] else 1
    return import_module("pytorch_optimizer").SOAP(groups)


def low_rank(module: str, name: str, options: dict[str, Any], **special: Any) -> Callable[[Groups], Made]:
    """The authors' packages know a matrix that is projected by keys of its group."""

    def make(groups: Groups) -> Made:
        for group in groups:
            if group["transformed"]:
                group.update(special)
        return getattr(import_module(module), name)(groups, **options)

    return make


def muon(groups: Groups) -> Made:
    """torch's Muon for the matrices of blocks, and its AdamW."""
    divided = [[group for group in groups if group["transformed"] is wanted] for wanted in (True, False)]
    hidden, others = torch.optim.Muon(divided[0], adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(divided[1])
    return Together([hidden, others])


class Together:
    """Several optimizers as one."""

    def __init__(self, made: list[torch.optim.Optimizer]) -> None:
        self._made = made

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for each in self._made for key, value in each.state.items()}

    def step(self) -> None:
        for each in self._made:
            each.step()


class UnshardedTransform:
    """A gradient transform and the optimizer that follows it, as one process without DeepSpeed has them."""

    def __init__(self, made: GradientTransform, names: dict[Tensor, str]) -> None:
        self._made, self._names, groups = made, names, made.optimizer.param_groups
        owned = [each for group in groups if group["transformed"] for each in group["params"]]
        self._kept: dict[Tensor, dict[str, Tensor]] = {each: {} for each in owned}

    @property
    def state(self) -> dict[Any, Any]:
        return {**self._kept, **{("followed", key): value for key, value in self._made.optimizer.state.items()}}

    @torch.no_grad()
    def step(self) -> None:
        for weight, state in self._kept.items():
            assert weight.grad is not None, "every weight has a gradient here"
            weight.grad = self._made.transform(self._names[weight], weight.grad, state)
        self._made.optimizer.step()


class FusedReference:
    """What pytorch-optimizer updates in hooks of the backward."""

    def __init__(self, name: str, groups: Groups) -> None:
        own = nn.ParameterList([each for group in groups for each in group["params"]])
        self._made = getattr(import_module("pytorch_optimizer"), name)(own, loss_scale=0.0)
        names = ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")
        self.state = {name: getattr(self._made, name, {}) for name in names}

    def step(self) -> None:
        self._made.num_steps = getattr(self._made, "num_steps", 0) + 1
        self._made.grad_func(0)


QUIET = {"no_deprecation_warning": True}
RANK = {"rank": 128, "update_proj_gap": 200, "proj_type": "std"}
REFERENCES: dict[str, Callable[[Groups], Made]] = {
    "sgd": library("torch.optim", "SGD", momentum=0.9),
    "rmsprop": library("torch.optim", "RMSprop"),
    "adam": library("torch.optim", "Adam"),
    "adamax": library("torch.optim", "Adamax"),
    "lion": library("pytorch_optimizer", "Lion"),
    "schedule-free-adamw": library("schedulefree", "AdamWScheduleFree"),
    "adafactor": library("torch.optim", "Adafactor"),
    "lamb": library("pytorch_optimizer", "Lamb"),
    "soap": soap,
    "galore": low_rank("galore_torch", "GaLoreAdamW", QUIET, scale=0.25, **RANK),
    "galore-adafactor": low_rank(
        "galore_torch",
        "GaLoreAdafactor",
        {"lr": 1e-3, "relative_step": False, "scale_parameter": False},
        scale=0.25,
        **RANK,
    ),
    "apollo": low_rank("apollo_torch", "APOLLOAdamW", QUIET, scale=1.0, proj="random", scale_type="channel", **RANK),
    "muon": muon,
    "lomo": partial(FusedReference, "LOMO"),
    "adalomo": partial(FusedReference, "AdaLOMO"),
    "galore-per-layer": low_rank("galore_torch", "GaLoreAdamW", QUIET, scale=0.25, **RANK),
    "galore-8bit": low_rank("galore_torch.adamw8bit", "AdamW8bit", {}, scale=0.25, **RANK),
    "torchao-adamw-8bit": library("torchao.optim", "AdamW8bit"),
    "torchao-adamw-4bit": library("torchao.optim", "AdamW4bit"),
    "torchao-adamw-fp8": library("torchao.optim", "AdamWFp8"),
    "adamw-8bit": library("bitsandbytes.optim", "AdamW8bit"),
}
OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}, "apollo": {"rank": 128}}


def weights(seed: int = 0) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)
    return [(name, nn.Parameter(torch.randn(shape, generator=generator) * 0.02)) for name, shape in SHAPES.items()]


def ours(name: str, own: list[tuple[str, nn.Parameter]]) -> Made:
    component = next(each for each in OPTIMIZERS if each.name == name)
    config = component.config(**OPTIONS.get(name, {}))
    made = component.build(config, component.split(own, config))
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in own}
    return UnshardedTransform(made, names) if isinstance(made, GradientTransform) else made


def theirs(name: str, own: list[tuple[str, nn.Parameter]]) -> Made:
    component = next(each for each in OPTIMIZERS if each.name == name)
    split = split_hidden if component.split in (split_hidden, transform_all) else split_decay
    groups = [{**group, "name": None} for group in split(own, component.config())]
    return REFERENCES[name](groups)


def seconds(optimizer: Made, own: list[tuple[str, nn.Parameter]], gradients: list[Tensor], steps: int) -> float:
    total = 0.0
    for _ in range(steps):
        for (_, weight), gradient in zip(own, gradients, strict=True):
            weight.grad = gradient.clone()
        began = time.process_time()
        optimizer.step()
        total += time.process_time() - began
    return total / steps


def state_bytes(optimizer: Made) -> float:
    """For each number of the weights; the authors' objects are looked into, too."""
    return sum(map(_bytes, optimizer.state.values())) / sum(each.numel() for _, each in weights())


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size() if value.dim() else 0
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_bytes, inner if inner else getattr(value, "__dict__", {}).values()))


def measure(name: str, pairs: int, steps: int) -> str:
    gradients = [torch.randn_like(each) * 1e-3 for _, each in weights(1)]
    sides = []
    for make in (ours, theirs) if name in REFERENCES else (ours,):
        own = weights()
        optimizer = make(name, own)
        seconds(optimizer, own, gradients, 2)  # the first steps make the state
        sides.append((optimizer, own))
    times: list[list[float]] = [[] for _ in sides]
    for pair in range(pairs):
        order = range(len(sides)) if pair % 2 else reversed(range(len(sides)))
        for side in order:
            times[side].append(seconds(*sides[side], gradients, steps))
    held = [f"{state_bytes(optimizer):.2f}" for optimizer, _ in sides]
    milliseconds = [f"{1000 * statistics.median(each):.1f}" for each in times]
    if len(sides) == 1:
        return f"| {name} | {milliseconds[0]} | | | {held[0]} | |"
    ratio = statistics.median(mine / other for mine, other in zip(*times, strict=True))
    return f"| {name} | {milliseconds[0]} | {milliseconds[1]} | {ratio:.2f} | {held[0]} | {held[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda device=None: None  # galore-torch asks for it on a CPU as well
    print(
        "| optimizer | ours, CPU-ms a step | library | ratio | state, bytes a number | library |\n|---|---|---|---|---|---|"
    )
    for component in OPTIMIZERS:
        if "cpu" in component.devices and (not arguments.only or component.name in arguments.only.split(",")):
            print(measure(component.name, arguments.pairs, arguments.steps), flush=True)


if __name__ == "__main__":
    main()
