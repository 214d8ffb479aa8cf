"""Values of documents that follow from all documents of a step: measured before its first backward, and put into its batches.

Shapes: D documents of these batches, A documents of the whole step, V values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from mt_core.errors import ComponentError
from mt_core.nn import Batch
from mt_train.engine.plan import Plan
from mt_train.engine.processes import Process, all_reduce
from mt_train.engine.step import Reader

Read = Callable[[Sequence[Batch], Reader], object]
"""Runs batches without a gradient, and shows the reader what the head gets."""
Share = Callable[[Tensor, bool], tuple[Tensor, int]]
"""(D, V) of one rank -> (A, V), the same on all ranks, and where its own begin; given whether the values are there, and count."""


@runtime_checkable
class CouplesStep(Protocol):
    """An objective whose loss of a document depends on other documents of the step, like KTO's baseline and AOT's order.

    ``step_values`` names numbers of documents that are measured before the first backward of a step, without gradient and dropout;
    nothing is measured for no names. ``couple`` sees those of the whole step, in an evaluation those of all its rows. What tries the
    model before shows batches without what it gives.
    """

    step_values: tuple[str, ...]

    def measure_step(self, hidden: Tensor, head: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """(B, T, D) -> for each name (documents,); those of padding have any number."""
        ...

    def couple(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """(documents of the step,) -> as many for each name that ``loss`` finds in ``Batch.documents``."""
        ...


def own_documents(values_DV: Tensor, counts: bool) -> tuple[Tensor, int]:
    """Share them with nobody: the documents of one process are all there are."""
    return values_DV, 0


def share_documents(plan: Plan, process: Process, values_DV: Tensor, counts: bool) -> tuple[Tensor, int]:
    """Put the documents of all ranks in the order of these; of ranks that share rows the counting one gives them. Collective."""
    mine = plan.data_rank(process.rank)
    sizes = torch.zeros(plan.data_ranks, dtype=torch.int64, device=process.device)
    sizes[mine] = len(values_DV) * counts
    sizes = all_reduce(sizes)
    start = int(sizes[:mine].sum())
    whole_AV = torch.zeros(int(sizes.sum()), values_DV.shape[1], dtype=values_DV.dtype, device=process.device)
    if counts:
        whole_AV[start : start + len(values_DV)] = values_DV
    return all_reduce(whole_AV), start


def couples(objective: object) -> TypeGuard[CouplesStep]:
    """Return whether the loss of a document depends on others of the step."""
    return isinstance(objective, CouplesStep) and bool(objective.step_values)


def couple(objective: object, batches: Iterable[Batch], read: Read, share: Share = own_documents) -> Iterable[Batch]:
    """Return the batches with what the objective makes of all documents; as they are where it has no such values. Collective.

    Raises ``ComponentError`` for other names or numbers than the objective says.
    """
    if not couples(objective):
        return batches
    batches = list(batches)
    sizes = [batch.document_count for batch in batches]
    found: list[Tensor] = []
    counts = False

    def reader(hidden: Tensor, head: nn.Module, batch: Batch) -> None:
        nonlocal counts
        found.append(_measure(objective, hidden, head, batch, sizes[len(found)]))
        counts = batch.counts_items

    read(batches, reader)
    own_DV = torch.cat(found) if found else torch.zeros(sum(sizes), len(objective.step_values), dtype=torch.float64)
    whole_AV, start = share(own_DV, counts)
    coupled = objective.couple(dict(zip(objective.step_values, whole_AV.unbind(1), strict=True)))
    if wrong := [name for name, each in coupled.items() if each.shape != (len(whole_AV),)]:
        raise ComponentError(
            f"couple() gives {wrong[0]!r} another shape than ({len(whole_AV)},): a number for each document"
        )
    pieces = {name: torch.split(each[start : start + sum(sizes)].float(), sizes) for name, each in coupled.items()}
    return [
        replace(
            batch,
            documents={
                **batch.documents,
                **{name: each[number].to(batch.input_ids.device) for name, each in pieces.items()},
            },
        )
        for number, batch in enumerate(batches)
    ]


def _measure(objective: CouplesStep, hidden: Tensor, head: nn.Module, batch: Batch, size: int) -> Tensor:
    """(D, V) in float64, in the order of ``step_values``."""
    given = objective.measure_step(hidden, head, batch)
    if given.keys() != set(objective.step_values) or any(each.shape != (size,) for each in given.values()):
        shapes = {name: tuple(each.shape) for name, each in given.items()}
        raise ComponentError(
            f"measure_step() gives {shapes}, and the batch has {size} documents and step_values {list(objective.step_values)}; give a"
            " number for each document under each of these names"
        )
    return torch.stack([given[name].detach().double() for name in objective.step_values], 1)
