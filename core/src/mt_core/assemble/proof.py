"""``data.prove``: documents of a packed row do not see one another, shown on the run's own model and rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from mt_core.data.loader import Loader, Position
from mt_core.engine.engine import Engine
from mt_core.engine.processes import ranks_where
from mt_core.errors import UsageError
from mt_core.nn import NOT_TRAINED, Batch
from mt_core.tracking.logs import notice

TOLERANCE = 1e-6
"""Of the loss. Kernels get the same shapes and, but for the changed documents, the same numbers: equal bits are the rule."""


def prove_if_asked(engine: Engine, loader: Loader, position: Position, *, asked: bool) -> None:
    """``prove`` on the run's next rows. Collective."""
    if not asked:
        return
    proved = prove(engine, next(loader.windows(position)).batches[0])
    if engine.process.is_main:
        notice(
            "data.prove: documents of packed rows do not see one another"
            if proved
            else "notice: data.prove found no row of two documents, so there is nothing to prove"
        )


def prove(engine: Engine, batch: Batch) -> bool:
    """Change every second document of the first rows, and see that the others' loss stays. Collective; any layout.

    False when no row has two documents, so that there is nothing to prove. Raises ``UsageError`` when documents leak into
    each other. A model whose blocks add nothing yet (zero at the start) shows no leak.
    """
    if not ranks_where(len({*batch.document_ids.reshape(-1).tolist()}) > 1):
        return False
    if (far := leak(engine, batch)) > TOLERANCE:
        raise UsageError(
            f"data.prove: other documents of a packed row changed the loss of a document by {far:.1e} of it, so the attention of"
            f" model {type(engine.module.model).__name__} does not keep documents apart (BlockContext.document_ids_BT)."
            " Train with --data.batching padding, or mend the model"
        )
    return True


def leak(engine: Engine, batch: Batch) -> float:
    """By what share of it the loss of some documents changes with the others' content; the larger of both halves."""
    return max(_change(engine, batch, half) for half in (0, 1))


def _change(engine: Engine, batch: Batch, half: int) -> float:
    """The documents of one half (even, odd) are changed, and those of the other half are looked at."""
    number, parts = engine.plan.part(engine.process.rank)
    changed_BT = batch.document_ids.chunk(parts, 1)[number] % 2 == half
    labels = batch.labels.masked_fill(changed_BT, NOT_TRAINED)
    vocabulary = engine.module.model.config.vocab_size
    other = torch.where(changed_BT, (batch.input_ids + 1) % vocabulary, batch.input_ids)
    losses = []
    for input_ids in (batch.input_ids, other):
        figures = engine.evaluate([replace(batch, input_ids=input_ids, labels=labels).indexed()])
        assert figures is not None, "nobody wants to stop"
        losses.append(figures["eval_loss"])
    before, after = losses
    return abs(after - before) / max(abs(before), math.ulp(1.0))
