"""Batches out of columns are those out of samples, one by one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Sample
from mt_core.nn import NOT_TRAINED, Batch, TokenObjective, document_lengths
from mt_core.nn.collation import collate, flatten
from mt_train.data.loader import make_batch
from mt_train.data.sample_rows import SampleRows
from mt_train.data.samples import EncodedSamples

tokens = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(0, 10)), min_size=1, max_size=9)
given_samples = st.lists(st.tuples(tokens, st.booleans()), min_size=1, max_size=12)
given_rows = st.lists(st.lists(st.integers(0, 11), max_size=4), min_size=1, max_size=5)


def one_by_one(rows: list[list[Sample]], length: int, pad_id: int) -> Batch:
    """A batch as the definition has it: sample after sample, slice after slice."""
    shape = (len(rows), length)
    input_ids, labels = torch.full(shape, pad_id), torch.full(shape, NOT_TRAINED)
    positions = torch.zeros(shape, dtype=torch.long)
    document_ids, lengths = (torch.zeros(shape, dtype=torch.int32) for _ in range(2))
    weights = torch.ones(shape) if any(sample.weights is not None for row in rows for sample in row) else None
    of_token = {name: torch.zeros(shape) for row in rows for sample in row for name in sample.token_values}
    of_document: dict[str, list[float]] = {
        name: [] for row in rows for sample in row for name in sample.document_values
    }
    items, documents = list[int](), 0
    for b, row in enumerate(rows):
        start = number = 0
        for sample in row:
            items.append(documents)
            whole = [torch.tensor(list(sample.ids)), torch.tensor(list(sample.trained), dtype=torch.bool)]
            whole += [torch.as_tensor(sample.weights if sample.weights is not None else [1.0] * len(sample.ids))]
            whole += [torch.as_tensor(each) for each in sample.token_values.values()]
            parts = list(sample.documents) or [len(sample.ids)]
            for ids, trained, weight, *values in zip(*(each.split(parts) for each in whole), strict=True):
                end = start + len(ids)
                input_ids[b, start:end] = ids
                labels[b, start : end - 1] = ids[1:].masked_fill(~trained[1:], NOT_TRAINED)
                positions[b, start:end], document_ids[b, start:end] = torch.arange(len(ids)), number
                lengths[b, start:end] = len(ids)
                if weights is not None:
                    weights[b, start : end - 1] = weight[1:]
                for name, value in zip(of_token, values, strict=True):
                    of_token[name][b, start : end - 1] = value[1:]
                start, number, documents = end, number + 1, documents + 1
            for name, each in sample.document_values.items():
                of_document[name] += each
        if not row:
            documents += 1
            for each in of_document.values():
                each.append(0.0)
        elif start < length:
            last = int(lengths[b, start - 1])
            positions[b, start:] = torch.arange(last, last + length - start)
            document_ids[b, start:], lengths[b, start:] = number - 1, last
    return Batch(
        input_ids,
        labels,
        positions,
        document_ids,
        weights,
        [each.row_id for row in rows for each in row],
        lengths=lengths,
        tokens=of_token,
        documents={name: torch.tensor(each) for name, each in of_document.items()},
        items=torch.tensor(items, dtype=torch.long),
    )


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    return list(one) == list(other) if isinstance(one, list | tuple) or hasattr(one, "of") else bool(one == other)


def sample_of(content: list[tuple[int, bool, float]], name: str, weighted: bool, valued: bool, cut: bool) -> Sample:
    """Perhaps of several documents, perhaps with values."""
    ids, trained, weights = (list(each) for each in zip(*content, strict=True))
    documents = [len(ids) // 2, len(ids) - len(ids) // 2] if len(ids) > 1 else [len(ids)]
    documents = documents if cut else []
    count = len(documents) or 1
    of_document = {"margin": [float(ids[0] % 97)] * count} if valued else {}
    of_token = {"advantage": [float(each % 89) for each in ids]} if valued else {}
    return Sample(ids, trained, name, weights if weighted else None, documents, of_document, of_token)


@given(given_samples, given_rows, st.integers(0, 5), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_batch_out_of_columns_is_the_one_of_the_samples(
    contents: list[tuple[list[tuple[int, bool, float]], bool]],
    groups: list[list[int]],
    room: int,
    valued: bool,
    cut: bool,
) -> None:
    samples = EncodedSamples()
    for number, (content, weighted) in enumerate(contents):
        samples.add(sample_of(content, f"row-{number}", weighted, valued, cut))
    groups = [[number % len(samples) for number in row] for row in groups]
    rows = SampleRows(samples, groups)
    listed = [list(row) for row in rows]
    assert rows.longest == max(sum(len(sample.ids) for sample in row) for row in listed)
    length = rows.longest + room or 1
    expected = one_by_one(listed, length, 7)
    for given_as in (rows, listed, [tuple(row) for row in listed]):
        batch = TokenObjective(pad_id=7).collate(given_as, length=length)
        named = any(listed)  # no sample at all has no names of values
        assert all(
            is_same(getattr(batch, each.name), getattr(expected, each.name))
            for each in fields(Batch)
            if named or each.name not in ("tokens", "documents")
        )


@given(given_samples, given_rows, st.booleans(), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_sums_over_documents_are_those_of_each_document_however_ranks_share_the_rows(
    contents: list[tuple[list[tuple[int, bool, float]], bool]], groups: list[list[int]], cut: bool, ranks: int
) -> None:
    """What the ranks add up is the sum over each document's trained tokens, whether its row lies here or in parts."""
    listed = [
        [sample_of(contents[number % len(contents)][0], "", False, True, cut) for number in row] for row in groups
    ]
    longest = max(sum(len(each.ids) for each in row) for row in listed)
    length = -(-max(longest, 1) // ranks) * ranks
    whole = TokenObjective().collate(listed, length=length)
    wanted = [
        float(sum(value for value, on in zip(values[1:], trained[1:], strict=True) if on))
        for row in listed
        for sample in row
        for values, trained in documents_of(sample)
    ]
    sums = torch.zeros(sum(max(1, sum(len(sample.documents) or 1 for sample in row)) for row in listed))
    for rank in range(ranks):
        batch = whole.cut(rank, ranks).with_index()
        values = batch.tokens["advantage"].reshape(-1)[batch.index_n()] if any(listed) else torch.zeros(0)
        sums += batch.document_sums(values)
        assert batch.counts_items == (rank == 0)
    assert whole.items is not None
    real = [
        number
        for number, empty in enumerate(flag for row in listed for flag in [not row] * max(1, count_documents(row)))
        if not empty
    ]
    assert sums[real].tolist() == wanted
    assert len(whole.items) == sum(map(len, listed))


def documents_of(sample: Sample) -> list[tuple[list[float], list[bool]]]:
    """Values and trained places of each document."""
    found, start = [], 0
    for length in sample.documents or [len(sample.ids)]:
        span = slice(start, start + length)
        found.append((list(sample.token_values["advantage"][span]), list(sample.trained[span])))
        start += length
    return found


def count_documents(row: list[Sample]) -> int:
    return sum(len(sample.documents) or 1 for sample in row)


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


def test_a_part_of_a_row_has_memory_for_its_own_tokens_and_knows_whole_documents() -> None:
    """Each of 8 ranks that share a row holds an eighth of it: no (B, T) tensor of whole rows stays."""
    sizes = (700, 1, 299, 24)
    whole = collate(
        flatten([[Sample(ids=list(range(size)), trained=[True] * size, row_id=str(size)) for size in sizes]]),
        length=1024,
        pad_id=0,
    )
    numbers = whole.with_index().document_n()
    found = []
    for part in range(8):
        batch = whole.cut(part, 8).with_index()
        held = [each for each in vars(batch).values() if isinstance(each, torch.Tensor)]
        per_token = sum(each.untyped_storage().nbytes() for each in held if each is not batch.items) / 128
        assert (
            per_token <= 8 * 4 + 4 * 2
        )  # ids, labels, positions, places of trained tokens; numbers and lengths of documents
        assert batch.document_lengths == (sizes,)
        assert batch.row_tokens == 1024
        assert torch.equal(
            batch.document_spans()[0], torch.tensor(sizes).repeat_interleave(torch.tensor(sizes))[part * 128 :][:128]
        )
        found.append(batch.document_n())
    assert torch.equal(torch.cat(found), numbers)
