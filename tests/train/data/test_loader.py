"""The same global sequence of rows, however it is shared out; every trained token exactly once."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise, takewhile
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mt_core import Sample
from mt_core.errors import DataError
from mt_core.nn import NOT_TRAINED, TokenObjective
from mt_train.config.data import Packing
from mt_train.data import loader as loader_module
from mt_train.data.encoding import Rules, encode
from mt_train.data.loader import HeldOut, Loader, Position
from mt_train.data.order import permutation, split_held_out
from mt_train.data.packing import WINDOW, best_fit, next_fit, pack
from mt_train.data.samples import EncodedSamples


class Words(TokenObjective):
    """A row is its own sample: ``n`` tokens that count up."""

    def encode(self, row: Any) -> Sample:
        return Sample(list(range(1, row["n"] + 1)), [True] * row["n"], row["id"])


class Rows:
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> dict[str, Any]:
        return {"id": f"row-{index}", "n": self.lengths[index]}


def loader(lengths: list[int], **options: Any) -> Loader:
    objective = Words()
    samples = encode(Rows(lengths), range(len(lengths)), objective, Rules(max_len=32, truncation="split"))
    given = {"sequence_len": 32, "packing": True, "micro_batch_size": 2, "global_batch_size": 8, "rank": 0, "world": 1}
    return Loader(samples, objective, **{**given, "seed": 5, **options})


LENGTHS = [3, 40, 7, 2, 31, 32, 33, 90, 5, 12, 9, 4, 4, 4, 28, 6, 17, 21, 2, 2, 64]


def tokens_of(windows: list[Any]) -> Counter[Any]:
    seen: Counter[Any] = Counter()
    for window in windows:
        for batch in window.batches:
            labels = batch.labels[batch.labels != NOT_TRAINED]
            seen.update(labels.tolist())
    return seen


WAYS: dict[str, dict[str, Any]] = {
    "best fit": {"packing": True},
    "sequential": {"packing": True, "fit": "sequential"},
    "padded": {"packing": False},
    "padded to 16": {"packing": False, "pad_multiple": 16},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


@ways
def test_an_epoch_trains_every_token_but_the_first_of_a_row_exactly_once(way: dict[str, Any]) -> None:
    source = loader(LENGTHS, **way)
    steps = source.steps_in(1)
    windows = [window for window, _ in zip(source.windows(Position()), range(steps), strict=False)]
    expected = Counter(token for length in LENGTHS for token in range(2, length + 1))
    assert tokens_of(windows) == expected
    assert windows[-1].after == Position(1, 0)


@ways
@pytest.mark.parametrize(("world", "micro"), [(1, 8), (1, 1), (2, 2), (2, 4), (4, 1)])
def test_ranks_and_micro_batches_share_the_same_global_rows(world: int, micro: int, way: dict[str, Any]) -> None:
    whole = next(loader(LENGTHS, **way).windows(Position()))
    parts = [
        next(loader(LENGTHS, rank=rank, world=world, micro_batch_size=micro, **way).windows(Position()))
        for rank in range(world)
    ]
    assert {part.row_ids for part in parts} == {whole.row_ids}
    assert len({len(part.batches) for part in parts}) == 1, "ranks must bring equally many micro-batches"
    together: Counter[Any] = Counter()
    for part in parts:
        together += tokens_of([part])
    assert together == tokens_of([whole])


@given(
    hundredths=st.integers(1, 350),
    rows=st.integers(1, 60),
    size=st.integers(1, 9),
)
def test_epochs_have_as_many_steps_as_exact_fractions_say(hundredths: int, rows: int, size: int) -> None:
    """A float is the decimal number that was written: 1.1 epochs of ten rows are eleven of them."""
    source = loader([3] * rows, packing=False, global_batch_size=size)
    whole, part = divmod(Fraction(hundredths, 100), 1)
    expected = int(whole) * ceil(Fraction(rows, size)) + ceil(part * rows / size)
    assert source.steps_in(hundredths / 100) == max(1, expected)


def test_steps_of_a_million_epochs_of_padded_rows_are_counted_without_ordering_any() -> None:
    assert loader([3] * 10, packing=False, global_batch_size=4).steps_in(1e6) == 3_000_000


def test_steps_of_many_packed_epochs_are_exact_and_never_counted_in_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They took as long as packing all epochs, without a word: a slip in the number looked like a run that hangs."""
    whole = loader([3] * 10, packing=True, sequence_len=16, global_batch_size=10)
    monkeypatch.setattr("mt_train.data.loader.pack_window", None)
    assert whole.steps_in(1e6) == 1_000_000, "all rows are one step, however they are packed"
    many = loader([9, 8] * 10, packing=True, sequence_len=16, global_batch_size=2)
    assert many.steps_in(1e9) >= 1e9, "more than a run may have are not counted"
    monkeypatch.undo()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("mt_train.data.epoch.PATIENCE", -1.0)
    rows = [
        len(loader([9, 8] * 10, packing=True, sequence_len=16, global_batch_size=2).rows(epoch)) for epoch in range(9)
    ]
    assert many.steps_in(9) == sum(ceil(each / 2) for each in rows)
    assert (
        capsys.readouterr().err.count("notice: the steps of 9 epochs are counted by packing the rows of each; 1 took")
        == 1
    )


@given(share=st.integers(1, 99), rows=st.integers(2, 400))
def test_a_share_of_the_rows_is_held_out_to_the_row(share: int, rows: int) -> None:
    expected = max(1, floor(Fraction(share, 100) * rows))
    assume(expected < rows)
    kept, out = split_held_out(rows, share / 100)
    assert (len(kept), len(out)) == (rows - expected, expected)


@ways
def test_a_position_resumes_exactly(way: dict[str, Any]) -> None:
    source = loader(LENGTHS, **way)
    windows = source.windows(Position())
    for _ in range(3):
        at = next(windows).after
    fresh = loader(LENGTHS, **way).windows(at)
    for _ in range(5):
        expected, got = next(windows), next(fresh)
        assert expected.row_ids == got.row_ids
        assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(expected.batches, got.batches, strict=True))


def test_epochs_have_different_orders_and_seeds_too() -> None:
    orders = [permutation(50, seed=seed, epoch=epoch, shuffle=True).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert permutation(5, seed=0, epoch=3, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40))
@settings(max_examples=100, deadline=None)
def test_packing_loses_nothing_and_never_overfills(lengths: list[int], capacity: int) -> None:
    rows = best_fit(range(len(lengths)), lengths, capacity)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
    assert all(sum(lengths[sample] for sample in row) <= capacity for row in rows)
    assert pack(range(len(lengths)), lengths, capacity, seed=0, epoch=0) == pack(
        range(len(lengths)), lengths, capacity, seed=0, epoch=0
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 40))
@settings(max_examples=100, deadline=None)
def test_sequential_rows_keep_the_order_and_begin_where_a_sample_does_not_fit(
    lengths: list[int], capacity: int
) -> None:
    rows = next_fit(lengths, capacity)
    assert [place for row in rows for place in row] == list(range(len(lengths)))
    sums = [sum(lengths[place] for place in row) for row in rows]
    assert max(sums) <= capacity
    assert all(used + lengths[after[0]] > capacity for used, after in zip(sums, rows[1:], strict=False))


def test_sequential_rows_are_the_samples_in_the_order_of_the_epoch() -> None:
    lengths = np.random.default_rng(3).integers(2, 33, WINDOW + 100).tolist()
    source = loader(lengths, fit="sequential")
    rows = source.rows(0).cut(0, len(lengths))
    order = permutation(len(lengths), seed=5, epoch=0, shuffle=True).tolist()
    assert [number for row in rows for number in row] == order
    assert WINDOW in np.cumsum([len(row) for row in rows]), "a row ends with the window"
    held = HeldOut(
        source.samples, Words(), sequence_len=32, packing=True, batch_size=1, rank=0, world=1, fit="sequential"
    )
    assert [number for row in held.rows.cut(0, len(lengths)) for number in row] == list(range(len(lengths)))


@pytest.mark.parametrize("packing", [True, False])
def test_passes_over_the_rows_grow_with_each_step_and_are_whole_where_an_epoch_ends(
    packing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "WINDOW", 50)
    lengths = np.random.default_rng(3).integers(2, 33, 222).tolist()
    steps = {"packing": packing, "global_batch_size": 4, "micro_batch_size": 2}
    source = loader(lengths, **steps)
    windows = list(takewhile(lambda window: window.epoch < 2, source.windows(Position())))
    passes = [window.passes or 0.0 for window in windows]
    assert all(0 < later - before <= 0.1 for before, later in pairwise([0.0, *passes]))
    assert [window.passes for window in windows if window.after.row == 0] == [1.0, 2.0]
    samples = np.cumsum([len(window.row_ids) for window in windows if window.epoch == 0])
    assert passes[: len(samples)] == pytest.approx(samples / len(lengths), abs=0.02 if packing else 1e-12)
    place = len(windows) // 3
    resumed = loader(lengths, **steps, rank=1, world=2).windows(windows[place - 1].after)
    assert next(resumed).passes == passes[place], "on any rank, and from any place"


@pytest.mark.parametrize(("multiple", "expected"), [(1, 17), (8, 24), (16, 32), (64, 32)])
def test_padded_rows_are_as_long_as_their_longest_rounded_up_within_a_row_of_the_model(
    multiple: int, expected: int
) -> None:
    options = {"packing": False, "pad_multiple": multiple}
    window = next(loader([3, 17, 2], **options, micro_batch_size=3).windows(Position()))
    assert [batch.input_ids.shape for batch in window.batches] == [(3, expected)]
    samples = loader([3, 17, 2]).samples
    held = HeldOut(samples, Words(), sequence_len=32, batch_size=3, rank=0, world=1, **options)
    assert [batch.input_ids.shape for batch in held.batches()] == [(3, expected)]
    empty = HeldOut(samples, Words(), sequence_len=32, batch_size=3, rank=1, world=2, **options)
    assert [batch.input_ids.shape for batch in empty.batches()] == [(1, min(multiple, 32))]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("fit", ["best_fit", "sequential"])
def test_the_whole_held_out_part_is_evaluated_once_on_any_number_of_ranks(world: int, fit: Packing) -> None:
    objective = Words()
    samples = encode(Rows(LENGTHS), range(len(LENGTHS)), objective, Rules(max_len=32, truncation="split"))
    options = {"sequence_len": 32, "packing": True, "batch_size": 2, "world": world}
    ranks = [list(HeldOut(samples, objective, rank=rank, fit=fit, **options).batches()) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    labels = [batch.labels[batch.labels != NOT_TRAINED] for batches in ranks for batch in batches]
    assert sum(len(part) for part in labels) == samples.report.tokens_trained


def test_the_held_out_part_is_the_same_for_every_seed_and_never_trained_on() -> None:
    train, out = split_held_out(40, 0.2)
    assert len(out) == 8
    assert sorted([*train, *out]) == list(range(40))
    assert np.array_equal(split_held_out(40, 0.2)[1], out)
    assert len(split_held_out(40, 3)[1]) == 3
    assert len(split_held_out(40, None)[1]) == 0
    with pytest.raises(DataError, match="leaves none to train on"):
        split_held_out(3, 3)


def test_a_limit_takes_the_held_out_rows_that_are_drawn_first_and_trains_on_none_of_the_others() -> None:
    train, out = split_held_out(40, 0.5, limit=3)
    assert np.array_equal(out, split_held_out(40, 3)[1])
    assert np.array_equal(train, split_held_out(40, 0.5)[0])
    assert np.array_equal(split_held_out(40, 2, limit=3)[1], split_held_out(40, 2)[1])


def test_samples_come_back_as_they_went_in() -> None:
    samples = EncodedSamples()
    samples.add(Sample([5, 6, 7], [False, True, False], "a", [1.0, 0.5, 1.0]))
    samples.add(Sample([9], [True], "b"))
    assert [list(sample.ids) for sample in samples] == [[5, 6, 7], [9]]
    assert [list(sample.trained) for sample in samples] == [[False, True, False], [True]]
    assert samples[0].weights == (1.0, 0.5, 1.0)
