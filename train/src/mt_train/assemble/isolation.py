"""The document-isolation check of ``data.prove``: documents of a batch do not see one another in the run's own model and rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from mt_core.errors import UsageError
from mt_core.nn import NOT_TRAINED, Batch, token_logprobs
from mt_core.tracking.logs import notice
from mt_train.data.loader import Loader, Position
from mt_train.engine.engine import Engine
from mt_train.engine.processes import all_reduce, ranks_where

TOLERANCE = 1e-6
"""Largest share of a loss that may change.

Kernels get the same shapes and, but for the changed documents, the same numbers: equal bits are the rule."""


def check_isolation_if_asked(engine: Engine, loader: Loader, position: Position, *, asked: bool) -> None:
    """Check the run's next rows, where it is asked for. Collective."""
    if not asked:
        return
    proved = check_isolation(engine, next(loader.windows(position)).batches[0])
    if engine.process.is_main:
        notice(
            "data.prove: documents that are computed together do not see one another"
            if proved
            else "notice: data.prove found no two documents that are computed together, so there is nothing to prove"
        )


def check_isolation(engine: Engine, batch: Batch) -> bool:
    """Change every second document of the first rows, and see that the others' loss stays. Collective; any layout.

    False when there are no two documents, so that there is nothing to prove. Raises ``UsageError`` when documents leak into
    each other. A model whose blocks add nothing yet (zero at the start) shows no leak.
    """
    if not ranks_where(len(torch.unique(_documents(batch))) > 1):
        return False
    if (far := largest_change(engine, batch)) > TOLERANCE:
        raise UsageError(
            f"data.prove: other documents of the batch changed the loss of a document by {far:.1e} of it, so model"
            f" {type(engine.module.model).__name__} does not keep documents apart. {_advice(batch)}, or mend the model"
        )
    return True


def _advice(batch: Batch) -> str:
    if ranks_where(bool(batch.document_ids.any())):
        return (
            "Its attention has to read BlockContext.document_ids_BT, and nothing may mix rows (batch normalisation does)."
            " Train with --data.batching padding if it is the attention"
        )
    return "Something mixes rows of a batch (batch normalisation does). Train with --train.micro-batch-size 1"


def _documents(batch: Batch) -> Tensor:
    """A number for each document: those that follow one another in a row, or begin rows that do, differ by one. (B, T)"""
    rows_B = torch.arange(len(batch.document_ids), device=batch.document_ids.device)
    return batch.document_ids + rows_B[:, None]


def largest_change(engine: Engine, batch: Batch) -> float:
    """Return by what share of it the loss of some documents changes with the others' content; the larger of both halves."""
    with _as_in_training(engine.module.model):
        return max(_change(engine, batch, half) for half in (0, 1))


def _change(engine: Engine, batch: Batch, half: int) -> float:
    """The documents of one half (even, odd) are changed, and those of the other half are looked at."""
    changed_BT = _documents(batch) % 2 == half
    labels = batch.labels.masked_fill(changed_BT, NOT_TRAINED)
    media = {name: each.keep(~changed_BT) for name, each in batch.media.items()}
    vocabulary = engine.module.model.config.vocab_size
    other = torch.where(changed_BT, (batch.input_ids + 1) % vocabulary, batch.input_ids)
    whole = replace(batch, labels=labels)
    before, after = _loss(engine, whole), _loss(engine, replace(whole, input_ids=other, media=media))
    return abs(after - before) / max(abs(before), math.ulp(1.0))


def _loss(engine: Engine, batch: Batch) -> float:
    """Return the negative log-likelihood of the labels, with the same random numbers each time, should anything ask for some.

    The run's own loss may not be defined where some documents have no label, as that of a pair without one of its sides. Collective.
    """
    device, total = engine.process.device, torch.zeros(1, dtype=torch.float64)

    def add(hidden_BTD: Tensor, head: nn.Module, shown: Batch) -> None:
        logps_n, _ = token_logprobs(head, *shown.select_trained(hidden_BTD))
        total.sub_(logps_n.double().sum().cpu())

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        engine.read([batch.with_index()], add)
    return float(all_reduce(total.to(device)).item())


@contextmanager
def _as_in_training(model: nn.Module) -> Iterator[None]:
    """Modules with buffers compute as they train: batch normalisation keeps rows apart only where it is evaluated.

    Their buffers are as before afterwards.
    """
    keepers = [module for module in model.modules() if next(module.buffers(recurse=False), None) is not None]
    before = [(buffer, buffer.clone()) for module in keepers for buffer in module.buffers(recurse=False)]
    hooks = [module.register_forward_pre_hook(_train) for module in keepers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _train(module: nn.Module, _: object) -> None:
    module.training = True  # this one alone: dropout below it stays off
