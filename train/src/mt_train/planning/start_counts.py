"""Groups, collectives and files of a start, a save and a resume, for each rank of a layout: pure functions, for any number of ranks.

Counted are files of the run's folder and calls of torch.distributed. Rows and weights are files of a run's own, as many on any
layout, and read from the disk once a node where its ranks share a page cache. tests/train/planning/test_start_counts.py holds all of
this against real runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

AGREEMENT = 13
"""Collectives by which ranks agree on a folder, versions and rows before the first step (``assemble.agreement``)."""


COLLECTIVES_OF_BLOCK = 2
"""Collectives of the ranks of a machine, in a thread beside training, for each block of a stream behind the first
(``engine.node_group``): how many bytes each has, and these."""


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Ranks of a run, and how they are divided. ``saved_ranks`` are those of the checkpoint that it goes on from, 0 without one;
    ``stream`` says whether its rows are one."""

    ranks: int
    ranks_per_node: int = 8
    pipeline: int = 1
    sequence: int = 1
    saved_ranks: int = 0
    stream: bool = False

    @property
    def nodes(self) -> int:
        """Machines of the run."""
        return ceil(self.ranks / self.ranks_per_node)


def process_groups(layout: RankLayout) -> int:
    """Return the groups that a rank makes beside the first: DeepSpeed's of all ranks, in a pipeline four more, ranks that share rows, and
    those of a machine that encode a stream together.

    The four are the ranks of a stage, those of a row of stages twice, and a rank alone.
    """
    encoders = layout.stream and min(layout.ranks, layout.ranks_per_node) > 1
    return 1 + 4 * (layout.pipeline > 1) + (layout.sequence > 1) + encoders


def collectives_at_start(layout: RankLayout, tensors: int) -> int:
    """Return the collectives of a rank before its first step, at ZeRO 0 to 2: the agreement, and a broadcast of each tensor.

    Three more on a resume: whether all files are whole, and what the files of all saved ranks hold; two more for a stream: which ranks
    are on one machine, and whether all have the rows of the step.
    """
    return AGREEMENT + tensors + 3 * (layout.saved_ranks > 0) + 2 * (layout.stream and layout.ranks > 1)


def files_at_start(layout: RankLayout, rank: int) -> int:
    """Return the files that a rank other than 0 opens in the folder of a new run: its log, and on one rank of a node the probe."""
    return 1 + (rank % layout.ranks_per_node == 0)


def files_written(layout: RankLayout) -> int:
    """Return the files that a rank other than 0 writes for a checkpoint: tensors, numbers, and for a while their hashes."""
    return 3


def files_in_checkpoint(layout: RankLayout, shards: int) -> int:
    """Return the files of a whole checkpoint: two a rank, the shards of the model, its index, and the manifest."""
    return 2 * layout.ranks + shards + 2


def state_files_read(layout: RankLayout) -> int:
    """Return the most files of optimizer state that a rank opens on a resume by as many ranks as saved: its share, which is its own.

    By other ranks: its share, and those that hold slices of its own.
    """
    return 2 * ceil(layout.saved_ranks / layout.ranks)
