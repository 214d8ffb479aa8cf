"""Ranks that share rows; that they compute what one does is shown in test_layouts.py."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from mt_train.engine.processes import Process
from mt_train.engine.sequence import sequence_group


@pytest.mark.parametrize(("world", "size"), [(4, 2), (1_024, 8), (16_384, 8)])
def test_a_rank_makes_its_own_group_alone_whatever_the_number_of_ranks(
    world: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[int]] = []

    def new_group(ranks: list[int], *, use_local_synchronization: bool) -> None:
        assert use_local_synchronization, "the others are not there to wait for"
        made.append(ranks)

    monkeypatch.setattr(dist, "new_group", new_group)
    for rank in (0, size - 1, size, world - 1):
        made.clear()
        sequence_group(Process(rank, world, rank, torch.device("cpu")), size)
        assert len(made) == 1
        assert rank in made[0]
        assert made[0] == list(range(made[0][0], made[0][0] + size))
        assert made[0][0] % size == 0
