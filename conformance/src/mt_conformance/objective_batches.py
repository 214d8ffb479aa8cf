"""Rows that objectives are tried on, and samples and batches of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mt_core.model_protocols import HasReference, Objective
from mt_core.nn import Batch
from mt_core.rows import Sample

ROWS: tuple[Mapping[str, Any], ...] = tuple(
    {"prompt": prompt, "response": chosen, "chosen": chosen, "rejected": rejected, "text": prompt + chosen}
    for prompt, chosen, rejected in (
        ("2 + 2 = ", "4", "five, or six"),
        ("The capital of France is ", "Paris, on the Seine.", "Rome"),
        ("Say yes: ", "yes", "no"),
        ("a", "a longer answer to a very short question", "a shorter answer"),
    )
)
"""Rows to fine-tune on, to read as text, and to prefer an answer of."""

REFERENCE = (-1.5, -4.0, -2.25)
"""Values that stand for those of a reference (nats), for one document after another."""


def sum_of(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    """Add up a figure over micro-batches, as the engine does: its sum, and its count."""
    pairs = [each[name] for each in metrics if name in each]
    return math.fsum(float(total) for total, _ in pairs), math.fsum(float(count) for _, count in pairs)


def batch_of(objective: Objective, rows: Sequence[Sequence[Sample]], more: int = 0) -> Batch:
    """Collate as the core does: as long as the longest row, and so many places more."""
    return objective.collate(rows, length=max(sum(len(each.ids) for each in row) for row in rows) + more).with_index()


def with_reference(sample: Sample, objective: Objective) -> Sample:
    """The sample with a value of a reference for each of its documents, where the objective compares with one."""
    names = objective.reference_values if isinstance(objective, HasReference) else ()
    count = len(sample.documents) or 1
    shift = 0.25 * len(sample.ids)  # another one for each row
    return with_values(sample, {name: [REFERENCE[n % len(REFERENCE)] - shift for n in range(count)] for name in names})


def with_values(sample: Sample, values: Mapping[str, Sequence[float]]) -> Sample:
    """The sample with further values of its documents."""
    return replace(sample, document_values={**sample.document_values, **values})


def without(sample: Sample, names: Collection[str]) -> Sample:
    """The sample as it was before its reference was measured."""
    kept = {name: value for name, value in sample.document_values.items() if name not in names}
    return replace(sample, document_values=kept)
