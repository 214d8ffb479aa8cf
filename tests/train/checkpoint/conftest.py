"""Checkpoints to damage and operations to make fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mt_train.checkpoint.store import CheckpointStore, Retention
from mt_train.checkpoint.tensors import ModelWriter, write_json, write_tensors


def rank_files(value: float) -> Callable[[Path], list[Path]]:
    """What one rank writes: two files of weights, one of state and one of numbers, all made of one value."""

    def write(folder: Path) -> list[Path]:
        model = ModelWriter(folder / "model", shard_bytes=64)
        model.add("a", torch.full((8,), value))
        model.add("b", torch.full((8, 2), value))
        state, numbers = folder / "state" / "rank-0000.safetensors", folder / "state" / "rank-0000.json"
        weights = model.close()
        write_tensors(state, {"m": torch.full((3,), value)})
        write_json(numbers, {"value": value})
        return [*weights, state, numbers]

    return write


Save = Callable[..., Path]


@pytest.fixture
def save() -> Save:
    """Save a step; every number in it is the step, unless another value is given."""

    def saved(
        store: CheckpointStore,
        step: int,
        keep_last: int = 2,
        value: float | None = None,
        keep_best: int = 0,
        loss: float | None = None,
    ) -> Path:
        content = rank_files(float(step) if value is None else value)
        manifest = {"tokens": step * 10, "evaluation": {} if loss is None else {"eval_loss": loss}}
        return store.save(step, write=content, manifest=manifest, keep=Retention(last=keep_last, best=keep_best))

    return saved


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)
