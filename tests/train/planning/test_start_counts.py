"""What a start, a save and a resume cost each rank: the pure counts against real runs, and at 16,384 ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt_train.planning.start_counts import (
    AGREEMENT,
    RankLayout,
    collectives_at_start,
    files_at_start,
    files_in_checkpoint,
    files_written,
    process_groups,
    state_files_read,
)

TENSORS = 21
"""Two blocks of nine tensors, embedding, last norm and head."""


def _config(**parallel: Any) -> dict[str, Any]:
    return {
        "model": {"name": "llama", "n_layers": 2, "dim": 32, "n_heads": 4, "n_kv_heads": 4},
        "train": {"steps": 1, "micro_batch_size": 1, "global_batch_size": 4, "sequence_len": 32},
        "parallel": {"timeout_seconds": 60, **parallel},
        "data": {"eval": None, "read_rows": 16},
        "eval": {"samples": 0},
    }


def _hold_counts(launch: Callable[..., Any], folder: Path, rows: Path, world: int) -> None:
    stream = _config(zero_stage=0) | {"dataset": {"name": "stream", "path": str(rows)}}
    stream["data"] = {**stream["data"], "shuffle_buffer": 4}
    cases = {
        "stream": stream,
        "whole": _config(zero_stage=0),
        "shares": _config(zero_stage=1, sequence=2),
        "stages": _config(pipeline=2),
        "again": {"resume": "shares", "train": {"steps": 2}},
    }
    launch("train/engine/start_worker.py", world, folder, cases, timeout=200)
    for rank in range(world):
        found = json.loads((folder / f"rank-{rank}.json").read_text())
        for name, layout in {
            "whole": RankLayout(ranks=world, ranks_per_node=world),
            "stream": RankLayout(ranks=world, ranks_per_node=world, stream=True),
            "shares": RankLayout(ranks=world, ranks_per_node=world, sequence=2),
            "stages": RankLayout(ranks=world, ranks_per_node=world, pipeline=2),
            "again": RankLayout(ranks=world, ranks_per_node=world, sequence=2, saved_ranks=world),
        }.items():
            phases = found[name]
            start = phases["start"]["calls"]
            calls = start["collectives"] + phases.get("verified", {"calls": {}})["calls"].get("collectives", 0)
            wanted = collectives_at_start(layout, TENSORS)
            assert start["groups"] == process_groups(layout), (name, rank)
            # A stage has some of the tensors only.
            assert AGREEMENT < calls <= wanted if name == "stages" else calls == wanted, (name, rank)
            if rank == 0:
                continue
            assert len(phases["save"]["files"]) == files_written(layout), (name, rank)
            if name == "again":
                state = [file for file in phases["start"]["files"] if "/state/" in file]
                assert len(state) == state_files_read(layout), (rank, state)
            else:
                assert len(phases["start"]["files"]) == files_at_start(layout, rank), (name, rank)
    for name in ("whole", "stages"):
        (checkpoint,) = (folder / name / "checkpoints").glob("step-*")
        files = [path for path in checkpoint.rglob("*") if path.is_file()]
        assert len(files) == files_in_checkpoint(RankLayout(ranks=world), shards=1), name


def test_two_ranks_make_the_groups_and_collectives_and_open_the_files_that_were_counted(
    launch: Callable[..., Any], tmp_path: Path, rows: Path, needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    needs("mt-plugin-datasets")
    _hold_counts(launch, tmp_path, rows, 2)


@pytest.mark.soak
def test_four_ranks_make_as_many(
    launch: Callable[..., Any], tmp_path: Path, rows: Path, needs: Callable[[str], None]
) -> None:
    needs("mt-plugin-llama")
    needs("mt-plugin-datasets")
    _hold_counts(launch, tmp_path, rows, 4)


def test_what_a_rank_does_grows_with_no_number_of_ranks() -> None:
    for shape in ({}, {"sequence": 8}, {"pipeline": 16}, {"stream": True}):
        few, many = (RankLayout(ranks=ranks, saved_ranks=ranks, **shape) for ranks in (16, 16_384))
        for count in (process_groups, files_written, state_files_read):
            assert count(few) == count(many) <= 6
        assert collectives_at_start(few, 291) == collectives_at_start(many, 291)
        # Probes that all nodes look for: one a node.
        assert sum(files_at_start(many, rank) for rank in range(16_384)) - 16_384 == many.nodes == 2_048
    alone = RankLayout(ranks=16_384, ranks_per_node=1, stream=True)
    assert process_groups(alone) == process_groups(RankLayout(ranks=16_384)), "a rank alone on its machine makes none"
