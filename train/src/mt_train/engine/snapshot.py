"""Snapshot of an engine: what it puts into a checkpoint and takes out of it.

``model/`` holds the live weights by name, written by rank 0; ``state/rank-NNNN.*`` hold each rank's slices of optimizer
state, and its random generators. Any number of ranks, at any ZeRO stage, reads the slices that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mt_core.errors import CheckpointError
from mt_train.checkpoint.tensors import ModelWriter, open_model, open_tensors, read_json, write_json, write_tensors
from mt_train.engine import fragments
from mt_train.engine.engine import Engine
from mt_train.engine.processes import Process, gather_texts
from mt_train.engine.random_state import random_numbers, random_tensors, restore_random
from mt_train.engine.scalars import own_scalars, scalars
from mt_train.engine.transform import PREFIX

OTHERS = "callbacks"
"""Folder of a checkpoint with the tensors that callbacks keep, one folder each."""

_NUMBERS = {"fragments", "scalars", "loss_scale", "random"}


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a checkpoint. Live ones change with the next step, and ``weights`` is walked once, by all ranks."""

    process: Process
    weights: Iterable[tuple[str, Tensor]]
    state: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    others: Mapping[str, Iterable[tuple[str, Tensor]]] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write this rank's files; every rank must call it. Returns their paths."""
        files = self._write_whole(folder / "model", self.weights)
        for name, tensors in self.others.items():
            files += self._write_whole(folder / OTHERS / name, tensors)
        stem = folder / "state" / f"rank-{self.process.rank:04d}"
        stem.parent.mkdir(exist_ok=True)
        write_tensors(stem.with_suffix(".safetensors"), self.state)
        write_json(stem.with_suffix(".json"), self.numbers)
        return [*files, stem.with_suffix(".safetensors"), stem.with_suffix(".json")]

    def _write_whole(self, folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> list[Path]:
        writer = ModelWriter(folder) if self.process.is_main else None
        for name, tensor in tensors:
            if writer is not None:
                writer.add(name, tensor.cpu())
        return [] if writer is None else writer.close()


def take_snapshot(
    engine: Engine,
    *,
    copied: bool = False,
    only: Container[str] | None = None,
    others: Mapping[str, Iterable[tuple[str, Tensor]]] | None = None,
) -> Snapshot:
    """Return what this rank would write now. ``copied``: into host memory, so that training may go on; all ranks must call it.

    ``only``: the names of the weights that are wanted. ``others`` are whole tensors beside the model's, by the name of their folder.
    """
    process = engine.process
    weights: Iterable[tuple[str, Tensor]] = engine.whole_weights(only=only)
    others = dict(others or {})
    if copied:
        weights = _keep_tensors(weights, process)
        others = {name: _keep_tensors(tensors, process) for name, tensors in others.items()}
    state, places = random_tensors(process.device), {}
    own_shapes: list[str] = []
    taken: set[int] = set()
    for fragment in fragments.fragments(engine):
        places[fragment.name] = [fragment.start, fragment.length]
        own_shapes += [f"{key}::{fragment.name}" for key in sorted(fragment.own_shapes)]
        for key, value in fragment.tensors.items():
            alone = not copied and value.data_ptr() not in taken  # several parameters may share one table
            taken.add(value.data_ptr())
            state[f"{key}::{fragment.name}"] = value.detach().cpu().contiguous() if alone else _host_copy(value)
    if engine.directions is not None:
        state |= {name: _host_copy(value) for name, value in engine.directions.tensors().items()}
    numbers = {
        "fragments": places,
        "scalars": scalars(engine),
        "own_scalars": own_scalars(engine),
        "own_shapes": own_shapes,
        "loss_scale": fragments.loss_scale(engine),
        "random": random_numbers(),
    }
    return Snapshot(process, weights, state, numbers, others)


def _keep_tensors(tensors: Iterable[tuple[str, Tensor]], process: Process) -> list[tuple[str, Tensor]]:
    """Every rank takes part in gathering, and only the first keeps what it sees."""
    kept = [(name, _host_copy(tensor)) if process.is_main else None for name, tensor in tensors]
    return [each for each in kept if each is not None]


def _host_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def read_snapshot(engine: Engine, folder: Path) -> bool:
    """Restore optimizer state and random generators. Returns whether the generators could be restored too.

    They can when this rank existed in the run that saved. Raises ``CheckpointError`` when slices are missing.
    """
    saved = SavedState(folder / "state")
    fragments.restore(engine, saved, saved.scalars)
    if engine.directions is not None:
        engine.directions.restore(saved.directions())
    fragments.restore_loss_scale(engine, saved.content[0]["loss_scale"])
    rank = engine.process.rank
    if rank >= len(saved.content) or len(saved.content) != engine.process.world:
        return False
    tensors = {name: saved.tensor(rank, name) for name in saved.names(rank) if name.startswith("rng::")}
    restore_random(tensors, saved.random(rank), engine.process.device)
    return True


def read_callback_tensors(folder: Path) -> dict[str, Mapping[str, Callable[[], Tensor]]]:
    """Return what callbacks kept in a checkpoint: name → tensor → a function that reads it."""
    places = sorted((folder / OTHERS).glob("*/index.json"))
    return {place.parent.name: open_model(place.parent) for place in places}


def _numbers(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not content.keys() >= _NUMBERS:
        raise CheckpointError(f"{path} lacks {', '.join(sorted(_NUMBERS))}; it is damaged or not ours")
    return content


def _describe_together(stems: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what the files of all saved ranks hold; each rank opens its share of them, and hears of the others. Collective.

    With all files opened by all ranks, 16,384 of them would open 32,768 each.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    found = [json.loads(text) for text in gather_texts(json.dumps([_describe(stem) for stem in stems[rank::world]]))]
    return [found[number % world][number // world] for number in range(len(stems))]


def _describe(stem: Path) -> dict[str, Any]:
    """Return what a saved rank holds, without its random numbers: nobody but the same rank needs them."""
    numbers = _numbers(stem.with_suffix(".json"))
    del numbers["random"]
    return {**numbers, "names": list(open_tensors(stem.with_suffix(".safetensors")))}


class SavedState:
    """The slices of all ranks of a checkpoint, read on demand. Every rank must make one."""

    def __init__(self, folder: Path) -> None:
        stems = (path.with_suffix("") for path in folder.glob("rank-*.json"))
        self._stems = sorted(stems, key=lambda stem: int(stem.name.removeprefix("rank-")))  # from 10,000 on by number
        if not self._stems:
            raise CheckpointError(
                f"{folder} holds no optimizer state; resume from a checkpoint that this command wrote"
            )
        self.content = _describe_together(self._stems)
        self._opened: dict[int, Mapping[str, Callable[[], Tensor]]] = {}
        self._index: dict[str, list[tuple[int, int, int]]] = {}
        for rank, content in enumerate(self.content):
            for name, (start, length) in content["fragments"].items():
                self._index.setdefault(name, []).append((start, length, rank))
        self._own_shapes = {full for content in self.content for full in content.get("own_shapes", ())}
        self._keys_of: dict[str, set[str]] = {name: set() for name in self._index}
        for key, _, name in (full.partition("::") for rank in range(len(self.content)) for full in self.names(rank)):
            if name in self._keys_of:
                self._keys_of[name].add(key)

    @property
    def scalars(self) -> dict[str, Any]:
        """Return the scalars of all groups, whichever stage of a pipeline has them."""
        return {name: value for content in self.content for name, value in content["scalars"].items()}

    @property
    def own_scalars(self) -> dict[str, dict[str, Any]]:
        """Return the scalars of parameters that differ from their group; checkpoints of earlier versions have none."""
        return {name: value for content in self.content for name, value in content.get("own_scalars", {}).items()}

    def holds(self, name: str) -> bool:
        """Return whether some rank had a slice of this parameter."""
        return name in self._index

    def keys(self, parameters: Sequence[str] | None) -> list[str]:
        """Keys of the saved state of these parameters (``None``: of all) that has a number for each weight, such as ``exp_avg``."""
        wanted = self._keys_of if parameters is None else parameters
        return sorted(set().union(*(self._keys_of.get(name, ()) for name in wanted)))

    def directions(self) -> dict[str, dict[str, Callable[[], Tensor]]]:
        """Return what a gradient transform kept: parameter → key → a function that reads it."""
        found: dict[str, dict[str, Callable[[], Tensor]]] = {}
        for rank in range(len(self.content)):
            for full in self.names(rank):
                kind, _, rest = full.partition("::")
                if kind == PREFIX:
                    name, _, key = rest.rpartition("::")
                    found.setdefault(name, {})[key] = partial(self.tensor, rank, full)
        return found

    def tensors_of(self, parameter: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors of a parameter that have a number for each weight, flat, and those of another shape as they were."""
        _, length, rank = self._index[parameter][0]
        size = max(start + length for start, length, _ in self._index[parameter])
        flat: dict[str, Tensor] = {}
        others: dict[str, Tensor] = {}
        for key in self._keys_of[parameter]:
            value = self.tensor(rank, f"{key}::{parameter}")
            if value.shape == (length,) and f"{key}::{parameter}" not in self._own_shapes:
                flat[key] = self.read(parameter, key, 0, size)
            else:
                others[key] = value
        return flat, others

    def names(self, rank: int) -> list[str]:
        """Names of one rank's tensors."""
        return list(self.content[rank]["names"])

    def tensor(self, rank: int, name: str) -> Tensor:
        """One tensor of one rank's file, which is opened when something of it is needed."""
        if rank not in self._opened:
            self._opened[rank] = open_tensors(self._stems[rank].with_suffix(".safetensors"))
        return self._opened[rank][name]()

    def random(self, rank: int) -> Any:
        """Return the random numbers' state of one rank that is no tensor."""
        return _numbers(self._stems[rank].with_suffix(".json"))["random"]

    def read(self, name: str, key: str, start: int, length: int) -> Tensor:
        """The values of a parameter's state in [start, start + length), from whichever ranks hold them."""
        pieces = sorted(self._index.get(name, []))
        out: list[Tensor] = []
        position = start
        for begin, count, rank in pieces:
            if begin <= position < begin + count and position < start + length:
                end = min(begin + count, start + length)
                out.append(self.tensor(rank, f"{key}::{name}").reshape(-1)[position - begin : end - begin])
                position = end
        if position != start + length:
            raise CheckpointError(
                f"the checkpoint holds {key} of {name} only up to element {position} of {start + length}; it was saved"
                " from another model, or with other parameters trained"
            )
        return torch.cat(out) if len(out) != 1 else out[0]
