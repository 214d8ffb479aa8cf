"""Batches out of columns are those out of samples, one by one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Sample
from mt_core.nn import NOT_TRAINED, Batch, TokenObjective, document_lengths
from mt_train.data.loader import make_batch
from mt_train.data.samples import EncodedSamples, SampleRows

tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(0, 10)), min_size=1, max_size=9)
given_samples = st.lists(st.tuples(tokens, st.booleans()), min_size=1, max_size=12)
given_rows = st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=1, max_size=5)


def one_by_one(rows: list[list[Sample]], length: int, pad_id: int) -> Batch:
    """A batch as the definition has it: sample after sample, slice after slice."""
    shape = (len(rows), length)
    input_ids, labels = torch.full(shape, pad_id), torch.full(shape, NOT_TRAINED)
    positions, document_ids, lengths = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    weights = torch.ones(shape) if any(sample.weights is not None for row in rows for sample in row) else None
    for b, row in enumerate(rows):
        start = 0
        for number, sample in enumerate(row):
            end = start + len(sample.ids)
            ids, trained = torch.tensor(list(sample.ids)), torch.tensor(list(sample.trained), dtype=torch.bool)
            input_ids[b, start:end] = ids
            labels[b, start : end - 1] = ids[1:].masked_fill(~trained[1:], NOT_TRAINED)
            last = length if number == len(row) - 1 else end
            positions[b, start:last] = torch.arange(last - start)
            document_ids[b, start:last] = number
            lengths[b, start:last] = end - start
            if weights is not None and sample.weights is not None:
                weights[b, start : end - 1] = torch.as_tensor(sample.weights, dtype=torch.float32)[1:]
            start = end
    names = [each.row_id for row in rows for each in row]
    return Batch(input_ids, labels, positions, document_ids, weights, names, lengths=lengths)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return list(one) == list(other) if isinstance(one, list | tuple) or hasattr(one, "of") else bool(one == other)


@given(given_samples, given_rows, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_a_batch_out_of_columns_is_the_one_of_the_samples(
    contents: list[tuple[list[tuple[int, bool, float]], bool]], groups: list[list[int]], room: int
) -> None:
    samples = EncodedSamples()
    for number, (content, weighted) in enumerate(contents):
        ids, trained, weights = (list(each) for each in zip(*content, strict=True))
        samples.add(Sample(ids, trained, f"row-{number}", weights if weighted else None))
    groups = [[number % len(samples) for number in row] for row in groups]
    rows = SampleRows(samples, groups)
    listed = [list(row) for row in rows]
    assert rows.longest == max(sum(len(sample.ids) for sample in row) for row in listed)
    length = rows.longest + room or 1
    expected = one_by_one(listed, length, 7)
    for given_as in (rows, listed, [tuple(row) for row in listed]):
        batch = TokenObjective(pad_id=7).collate(given_as, length=length)
        assert all(same(getattr(batch, each.name), getattr(expected, each.name)) for each in fields(Batch))


class Longer(TokenObjective):
    """A stranger's objective, which makes samples of its own out of those that it gets."""

    def collate(self, rows: Any, *, length: int) -> Batch:
        said = [[Sample([9, *each.ids], [True, *each.trained], each.row_id) for each in row] for row in rows]
        assert [row[0].row_id for row in rows[:2]] == [row[0].row_id for row in said[:2]]
        return super().collate(said, length=length + 1)


def test_an_objective_that_looks_at_samples_gets_lists_of_them() -> None:
    samples = EncodedSamples()
    for number in range(3):
        samples.add(Sample([1, 2, 3], [True] * 3, f"row-{number}"))
    batch = make_batch(samples, Longer(), [(2,), (0,)], None)
    assert batch.input_ids.tolist() == [[9, 1, 2, 3, 0, 0, 0, 0, 0]] * 2
    assert list(batch.row_ids) == ["row-2", "row-0"]


@given(st.lists(st.lists(st.integers(0, 2), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_document_lengths_are_the_runs_of_each_row(ids: list[list[int]]) -> None:
    runs = [torch.unique_consecutive(torch.tensor(row), return_counts=True)[1].tolist() for row in ids]
    assert document_lengths(torch.tensor(ids)) == tuple(map(tuple, runs))
