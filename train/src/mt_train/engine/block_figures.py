"""Sums of what the blocks of a model report and gather in a step, over all ranks: figures of its record, and tensors for ``after_step``."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mt_core.errors import ComponentError
from mt_core.nn import StepSums
from mt_core.protocols import StepRecord
from mt_train.engine.processes import gather_texts

_OF_RECORD = frozenset(each.name for each in fields(StepRecord))


class BlockFigures:
    """The sums of this rank's blocks, and how they meet those of others. Ranks agree on the names in their first step.

    ``of_step`` is what blocks have gathered in the step, added up over the ranks that have them.
    """

    def __init__(self, sums: StepSums) -> None:
        self.sums = sums
        self.names: tuple[str, ...] | None = None
        self.of_step: Mapping[str, Tensor] = {}

    def pairs(self, like: Tensor, taken: Collection[str], group: Any) -> Tensor:
        """Return sum and count of each figure, on this rank, to be added up with ``like``, the sums of its loss. The ranks of
        ``group`` have the same blocks.

        Raises ``ComponentError`` for a name that a step or its objective has already (``taken``), and for one that was not in the
        first step. Collective in the first step, and where blocks gather anything.
        """
        self.of_step = self._add_up(group)
        for name, figures in self.sums.figures_of.items():
            for figure, value in figures(self.of_step[name]).items():
                self.sums.add(figure, value, 1.0)
        here = self.sums.figures
        if self.names is None:
            said = [name for text in gather_texts(json.dumps(sorted(here))) for name in json.loads(text)]
            self.names = tuple(sorted(set(said)))
        if twice := sorted({*self.names, *here} & {*taken, *_OF_RECORD}):
            raise ComponentError(
                f"a block reports the figure {twice[0]!r}, which the step's record has already, of the step itself or of the objective;"
                " the model's plugin must give it another name"
            )
        if new := sorted(here.keys() - set(self.names)):
            raise ComponentError(
                f"a block reports the figure {new[0]!r}, which no rank reported in the first step; every block reports the same names in"
                " every step, with a sum and a count of 0 where it has nothing to say"
            )
        if not self.names:
            return like[:0]
        nothing = torch.zeros(2, dtype=torch.float64, device=like.device)
        return torch.cat([_pair(*here[name]) if name in here else nothing for name in self.names])

    def _add_up(self, group: Any) -> Mapping[str, Tensor]:
        here = {name: self.sums.gathered[name] for name in sorted(self.sums.gathered)}
        if not here or dist.get_world_size(group) == 1:
            return here
        flat = torch.cat([each.reshape(-1) for each in here.values()])
        dist.all_reduce(flat, group=group)
        pieces = torch.split(flat, [each.numel() for each in here.values()])
        return {name: piece.view_as(here[name]) for name, piece in zip(here, pieces, strict=True)}


def _pair(total: Tensor, count: Tensor | float) -> Tensor:
    other = (
        count if isinstance(count, Tensor) else torch.full_like(total, count)
    )  # filled on the device: nothing is copied
    return torch.stack([total, other.to(total)])
