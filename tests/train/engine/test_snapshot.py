"""The saved state of all ranks, as it is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mt_train.checkpoint.tensors import write_json, write_tensors
from mt_train.engine import fragments, snapshot
from mt_train.engine.snapshot import SavedState


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(snapshot, "_describe_together", lambda stems: [snapshot._describe(stem) for stem in stems])
    return tmp_path


def save(folder: Path, rank: int, *, own_shapes: list[str] | None = None, **tensors: torch.Tensor) -> None:
    stem = folder / f"rank-{rank:04d}"
    write_tensors(stem.with_suffix(".safetensors"), {f"{key}::w": value for key, value in tensors.items()})
    numbers = {"fragments": {"w": [0, 4]}, "scalars": {}, "loss_scale": {}, "random": {"of": rank}}
    write_json(stem.with_suffix(".json"), numbers | ({} if own_shapes is None else {"own_shapes": own_shapes}))


def test_a_count_beyond_those_of_float32_is_read_back_as_it_was() -> None:
    for step in (20, 2**24, 2**24 + 3):
        kept = fragments._as_kept({"step": float(step)})["step"]
        assert (int(kept), kept.dtype) == (step, torch.float64 if step > 2**24 else torch.float32)


def test_ranks_are_in_the_order_of_their_numbers_from_ten_thousand_on(folder: Path) -> None:
    """``rank-10000`` stands before ``rank-1001`` in a directory, and a rank read the random numbers of another."""
    ranks = [10000, 1001, 1000, 999]
    for rank in ranks:
        save(folder, rank, moment=torch.zeros(4))
    saved = SavedState(folder)
    assert [saved.random(place)["of"] for place in range(len(ranks))] == sorted(ranks)


def test_state_with_a_shape_of_its_own_is_not_taken_for_a_flat_one_of_as_many_numbers(folder: Path) -> None:
    """A sum of each column of a matrix with one row has as many numbers as the matrix."""
    save(folder, 0, own_shapes=["columns::w"], moment=torch.arange(4.0), columns=torch.ones(4), rows=torch.ones(1))
    flat, others = SavedState(folder).tensors_of("w")
    assert (set(flat), set(others)) == ({"moment"}, {"columns", "rows"})
    assert torch.equal(flat["moment"], torch.arange(4.0))


def test_checkpoints_that_do_not_say_so_are_read_as_before(folder: Path) -> None:
    save(folder, 0, moment=torch.arange(4.0), columns=torch.ones(4))
    assert set(SavedState(folder).tensors_of("w")[0]) == {"moment", "columns"}
