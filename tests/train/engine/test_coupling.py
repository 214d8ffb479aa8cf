"""Values that follow from all documents of a step: measured, shared, put where their documents are. Layouts: tests/alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mt_core import ComponentError, Sample
from mt_core.nn import Batch, TokenObjective
from mt_train.engine.coupling import couple
from mt_train.engine.step import Reader


class Centre(TokenObjective):
    """Gives each document how far its length is from the mean of the step's."""

    step_values: tuple[str, ...] = ("length",)

    def measure_step(self, hidden: Tensor, head: Any, batch: Batch) -> Mapping[str, Tensor]:
        return {"length": batch.document_sums(torch.ones(batch.trained_tokens))}

    def couple(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"distance": values["length"] - values["length"].mean()}


def batches_of(*rows: Sequence[int]) -> list[Batch]:
    """A batch for each, of documents with so many trained tokens."""

    def sample(length: int) -> Sample:
        return Sample([1] * (length + 1), [True] * (length + 1), "row")

    return [TokenObjective().collate([[sample(each)] for each in row], length=8).with_index() for row in rows]


def reads(calls: list[int]) -> Any:
    """Shows each batch without a model, and notes how many were read at once."""

    def read(batches: Sequence[Batch], reader: Reader) -> None:
        calls.append(len(batches))
        for batch in batches:
            reader(torch.zeros(*batch.input_ids.shape, 2), torch.nn.Identity(), batch)

    return read


def test_each_document_gets_what_follows_from_all_batches() -> None:
    given = batches_of([1, 2], [3], [6, 2, 4])
    found = couple(Centre(), given, reads([]))
    assert [each.documents["distance"].tolist() for each in found] == [[-2.0, -1.0], [0.0], [3.0, -1.0, 1.0]]
    assert not any(batch.documents for batch in given), "those that were given are as they were"


def test_each_batch_is_read_once_all_of_them_together() -> None:
    calls: list[int] = []
    couple(Centre(), iter(batches_of(*[[1]] * 19)), reads(calls))
    assert calls == [19]


def test_the_documents_of_other_ranks_stand_before_and_behind_the_own_ones() -> None:
    def share(values_DV: Tensor, counts: bool) -> tuple[Tensor, int]:
        assert counts
        before, behind = torch.full((2, 1), 9.0), torch.full((1, 1), 0.0)
        return torch.cat([before, values_DV, behind]), 2

    (found,) = couple(Centre(), batches_of([1, 5]), reads([]), share)
    assert found.documents["distance"].tolist() == pytest.approx([1 - 24 / 5, 5 - 24 / 5], rel=1e-6)


def test_an_objective_without_such_values_reads_nothing() -> None:
    given, silent = batches_of([1]), Centre()
    silent.step_values = ()
    calls: list[int] = []
    assert couple(silent, given, reads(calls)) is given
    assert couple(TokenObjective(), given, reads(calls)) is given
    assert calls == []


def test_other_names_and_numbers_than_were_said_are_refused() -> None:
    class Other(Centre):
        step_values = ("length", "width")

    class Short(Centre):
        def measure_step(self, hidden: Tensor, head: Any, batch: Batch) -> Mapping[str, Tensor]:
            return {"length": torch.zeros(1)}

    class Few(Centre):
        def couple(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return {"mean": values["length"].mean()}

    for objective, says in (
        (
            Other(),
            r"measure_step\(\) gives \{'length': \(2,\)\}, and the batch has 2 documents and step_values \['length', 'width'\]",
        ),
        (Short(), r"measure_step\(\) gives \{'length': \(1,\)\}"),
        (Few(), r"couple\(\) gives 'mean' another shape than \(2,\)"),
    ):
        with pytest.raises(ComponentError, match=says):
            couple(objective, batches_of([1, 2]), reads([]))
