"""A stream: one global sequence for any number of ranks, nothing lost or repeated, and resumed to the bit at every step."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import DataError, Rejected, Sample
from mt_core.nn import NOT_TRAINED, TokenObjective
from mt_train.data.encoding import Rules
from mt_train.data.loader import Position, WaitingEnded, Window
from mt_train.data.stream import blocks as blocks_module
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.loader import StreamLoader
from mt_train.data.stream.reader import StreamReader

LENGTHS = [3, 9, 7, 2, 31, 12, 32, 9, 5, 12, 9, 4, 4, 0, 28, 6, 17, 21, 2, 2, 30, 5, 11]
FAULTY = -1


class Words(TokenObjective):
    """A row is so many times its own number."""

    def encode(self, row: Any) -> Sample | Rejected:
        if not row["n"]:
            return Rejected("empty", row["id"])
        return Sample([row["number"]] * row["n"], [True] * row["n"], row["id"])


class NumberedRows:
    """Rows of these lengths; ``FAULTY`` is one that cannot be used. With or without a state."""

    def __init__(self, lengths: Sequence[int] | None = None, *, stateful: bool = True, once: bool = False) -> None:
        self.lengths, self.stateful, self.once = lengths, stateful, once
        self.given, self.opened, self.start = 0, 0, 0

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        self.opened += 1
        start, self.start = self.start, 0
        lengths = iter(() if self.once and epoch else (count(2) if self.lengths is None else self.lengths))
        for number, n in islice(enumerate(lengths), start, None):
            self.given = number + 1
            yield (
                DataError(f"row-{number} is faulty")
                if n == FAULTY
                else {"id": f"row-{number}", "number": number, "n": n}
            )

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given} if self.stateful else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["given"]


def blocks(
    source: Any,
    *,
    size: int = 5,
    held_out: int = 0,
    limit: int | None = None,
    said: list[str] | None = None,
    **options: Any,
) -> Blocks:
    rules = Rules(max_len=32, truncation="split", **options)
    reader = StreamReader(source, "dataset 'numbered'", seed=5, say=(said if said is not None else []).append)
    return Blocks(reader, Words(), rules, size=size, held_out=held_out, limit=limit)


def loader(source: Any, *, blocks_of: dict[str, Any] | None = None, **options: Any) -> StreamLoader:
    usual = {"sequence_len": 32, "packing": True, "micro_batch_size": 2, "global_batch_size": 3, "rank": 0, "world": 1}
    return StreamLoader(blocks(source, **(blocks_of or {})), Words(), **{**usual, "seed": 5, **options})


def all_windows(source: StreamLoader) -> list[Window]:
    """Every step of a source that has rows in the first epoch only."""
    windows: list[Window] = []
    with pytest.raises(DataError, match="gave nothing to train on in epoch 1"):
        windows.extend(source.windows(Position()))
    return windows


def trained_rows(windows: Sequence[Window]) -> Counter[int]:
    seen: Counter[int] = Counter()
    for window in windows:
        for batch in window.batches:
            seen.update(batch.labels[batch.labels != NOT_TRAINED].tolist())
    return seen


def is_same(first: Window, second: Window) -> bool:
    return (
        (first.row_ids, first.after) == (second.row_ids, second.after)
        and len(first.batches) == len(second.batches)
        and all(
            torch.equal(a.input_ids, b.input_ids) and torch.equal(a.labels, b.labels)
            for a, b in zip(first.batches, second.batches, strict=True)
        )
    )


rows = st.lists(st.sampled_from([FAULTY, 0, 1, 2, 5, 31, 32, 33, 70]), min_size=1, max_size=40)


@given(rows, st.integers(1, 12), st.integers(0, 5), st.booleans(), st.integers(1, 3), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_every_row_of_an_epoch_is_trained_once_or_held_out_or_counted(
    lengths: list[int], size: int, held_out: int, packing: bool, world: int, rows_a_step: int
) -> None:
    lengths = [*lengths, 4]  # one at least is left to train on
    held_out = min(held_out, len(lengths) - 1)
    options = {"packing": packing, "global_batch_size": rows_a_step, "world": world, "micro_batch_size": 2}
    of = {"size": size, "held_out": held_out, "on_bad_row": "skip"}
    ranks = [loader(NumberedRows(lengths, once=True), rank=rank, blocks_of=of, **options) for rank in range(world)]
    found: Counter[int] = Counter()
    for rank in ranks:
        found += trained_rows(all_windows(rank))
    kept = {number: n - 1 for number, n in enumerate(lengths) if number >= held_out and n > 1}
    assert found == kept
    report, out = ranks[0]._blocks.report, ranks[0]._blocks.held_out.report
    assert (report.rows_read, out.rows_read) == (len(lengths) - held_out, held_out)
    assert report.rows_kept == len(kept)
    assert report.rows_kept + report.rows_dropped.total() == report.rows_read


@pytest.mark.parametrize(("world", "micro"), [(1, 8), (2, 1), (2, 2), (3, 1)])
def test_the_global_sequence_is_the_same_for_any_number_of_ranks(world: int, micro: int) -> None:
    whole = loader(NumberedRows(LENGTHS)).windows(Position())
    parts = [
        loader(NumberedRows(LENGTHS), rank=rank, world=world, micro_batch_size=micro).windows(Position())
        for rank in range(world)
    ]
    for _ in range(12):  # more than an epoch
        expected, got = next(whole), [next(part) for part in parts]
        assert all((part.row_ids, part.after) == (expected.row_ids, expected.after) for part in got)
        assert len({len(part.batches) for part in got}) == 1, "ranks must bring equally many micro-batches"
        assert trained_rows(got) == trained_rows([expected])


BATCHING = {
    "packed": {"packing": True},
    "padded": {"packing": False},
    "grouped": {"packing": False, "group_by_length": True},
}


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("batching", BATCHING)
def test_a_run_that_is_resumed_after_any_step_goes_on_as_if_undisturbed(stateful: bool, batching: str) -> None:
    def windows(position: Position) -> Iterator[Window]:
        source = NumberedRows(LENGTHS, stateful=stateful)
        return loader(source, blocks_of={"held_out": 2}, **BATCHING[batching]).windows(position)

    undisturbed = list(islice(windows(Position()), 18))
    assert undisturbed[-1].after.epoch >= 1
    for step in range(1, 18):
        stored = json.loads(json.dumps(asdict(undisturbed[step - 1].after)))
        rest = undisturbed[step : step + 3]
        assert all(map(is_same, rest, islice(windows(Position(**stored)), len(rest)))), step


def test_a_position_of_a_run_without_a_stream_is_still_read() -> None:
    assert Position(epoch=2, row=7) == Position(2, 7)


@pytest.mark.parametrize(("stateful", "expected"), [(True, 0), (False, 1)])
def test_a_source_without_a_state_is_skipped_through_with_a_word(stateful: bool, expected: int) -> None:
    def start(position: Position, said: list[str], source: NumberedRows) -> list[Window]:
        return list(islice(loader(source, packing=False, blocks_of={"said": said}).windows(position), 4))

    lengths = [4] * 40
    after = start(Position(), [], NumberedRows(lengths, stateful=stateful))[-1].after
    assert (after.block, after.row, after.read) == (2, 2, 10)
    said: list[str] = []
    source = NumberedRows(lengths, stateful=stateful)
    start(after, said, source)
    assert said == ["skipping 5 rows of dataset 'numbered', which has no state to go on from"] * expected


def order(seed: int = 5, epoch: int = 0, size: int = 6, **options: Any) -> list[int]:
    source = loader(
        NumberedRows([2] * 24), packing=False, global_batch_size=1, seed=seed, blocks_of={"size": size}, **options
    )
    rows = islice(source.windows(Position(epoch)), 24)
    return [int(window.row_ids[0].removeprefix("row-")) for window in rows]


def test_rows_are_shuffled_within_the_buffer_by_seed_epoch_and_place_alone() -> None:
    given_order = order()
    assert given_order == order()
    for start in range(0, 24, 6):
        assert sorted(given_order[start : start + 6]) == list(range(start, start + 6))
    places = {tuple(number - start for number in given_order[start : start + 6]) for start in range(0, 24, 6)}
    assert len(places) > 1, "each buffer has an order of its own"
    assert len({tuple(order(seed, epoch)) for seed in (5, 6) for epoch in (0, 1)}) == 4
    assert order(shuffle=False) == order(size=1) == list(range(24))


def test_held_out_rows_are_the_first_and_are_trained_on_in_no_epoch() -> None:
    source = loader(NumberedRows([2] * 12), packing=False, blocks_of={"held_out": 3, "size": 4})
    assert [sample.row_id for sample in source._blocks.held_out] == ["row-0", "row-1", "row-2"]
    seen = [row for window in islice(source.windows(Position()), 9) for row in window.row_ids]
    assert Counter(seen) == Counter({f"row-{number}": 3 for number in range(3, 12)})


def test_of_an_endless_stream_only_what_is_needed_is_read() -> None:
    source = NumberedRows()
    steps = list(islice(loader(source, blocks_of={"size": 50}).windows(Position()), 3))
    assert len(steps) == 3
    assert source.given <= 150
    assert source.opened == 1


def test_a_bad_row_ends_the_run_when_its_block_comes_and_not_before() -> None:
    windows = loader(NumberedRows([4] * 12 + [FAULTY] + [4] * 5), packing=False).windows(Position())
    assert len(list(islice(windows, 3))) == 3
    with pytest.raises(DataError, match="row-12 is faulty"):
        list(islice(windows, 3))


def test_bad_rows_that_are_passed_over_are_named_and_limited_over_all_blocks() -> None:
    said: list[str] = []
    of = {"on_bad_row": "skip", "max_bad_rows": 2, "said": said, "size": 3}
    lengths = [4, 4, FAULTY, 4, FAULTY, 4, 4, 4, 4]
    assert len(list(islice(loader(NumberedRows(lengths), blocks_of=of).windows(Position()), 6))) == 6, (
        "in two epochs, too"
    )
    assert said[0] == "warning: passed over a bad row: row-4 is faulty"
    with pytest.raises(DataError, match=r"3 bad rows exceed data\.max_bad_rows=2"):
        list(islice(loader(NumberedRows([*lengths, 4, FAULTY]), blocks_of=of).windows(Position()), 6))


def test_a_stream_that_has_nothing_left_to_give_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(DataError, match="has no rows"):
        blocks(NumberedRows([]))
    with pytest.raises(DataError, match=r"data\.eval=3 holds out all rows of dataset 'numbered'"):
        blocks(NumberedRows([4, 4, 4]), held_out=5, limit=1)
    with pytest.raises(DataError, match="gave nothing to train on in epoch 1; it can be read only once"):
        list(islice(loader(NumberedRows([4, 4, 4], once=True)).windows(Position()), 9))
    with pytest.raises(DataError, match="gave nothing to train on in epoch 0"):
        next(loader(NumberedRows([0, 0, 1, 0, 0, 0, 0])).windows(Position()))


def test_an_endless_stream_of_rows_that_are_dropped_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BARREN_ROWS", 40)

    class Empty(NumberedRows):
        def rows(self, epoch: int, seed: int) -> Iterator[Any]:
            return ({"id": f"row-{number}", "number": number, "n": 0} for number in count())

    with pytest.raises(DataError, match=r"40 rows of dataset 'numbered' one after another gave nothing .*40 × empty"):
        blocks(Empty())


def test_rows_that_are_read_twice_are_counted_once() -> None:
    once, twice = loader(NumberedRows(LENGTHS)), loader(NumberedRows(LENGTHS))
    next(twice.windows(Position()))  # as data.prove does before the run takes the same step
    for source in (once, twice):
        list(islice(source.windows(Position()), 3))
    assert twice._blocks.report == once._blocks.report


def test_the_report_of_a_stream_does_not_grow_with_it() -> None:
    source = loader(NumberedRows([4, FAULTY, 4, 4, 4]), blocks_of={"on_bad_row": "skip"})
    list(islice(source.windows(Position()), 60))
    report = source._blocks.report
    assert report.rows_dropped["bad row"] > 20, "they are counted"
    assert (report.bad_rows, report.named_files, report.hashes) == ([], {}, None)


@pytest.mark.parametrize("state", [{"place": {1, 2}}, {"place": (1, 2)}, {3: "three"}, {"place": float("inf")}])
def test_a_state_that_json_cannot_hold_is_refused(state: dict[Any, Any]) -> None:
    class Odd(NumberedRows):
        def state_dict(self) -> dict[str, Any]:
            return state

    with pytest.raises(DataError, match="the state of dataset 'numbered' cannot be kept in a checkpoint"):
        blocks(Odd(LENGTHS))


def test_rows_that_are_held_out_need_ids_of_their_own() -> None:
    class Alike(NumberedRows):
        def rows(self, epoch: int, seed: int) -> Iterator[Any]:
            return ({**row, "id": "row"} for row in super().rows(epoch, seed))

    with pytest.raises(DataError, match="the first 3 rows of dataset 'numbered' have only 1 ids"):
        blocks(Alike(LENGTHS), held_out=3)


def test_a_row_that_comes_again_is_held_out_once_and_never_trained_on() -> None:
    class Again(NumberedRows):
        def rows(self, epoch: int, seed: int) -> Iterator[Any]:
            first, *others = super().rows(epoch, seed)
            return iter([first, others[0], dict(first), *others[1:], dict(first)])

    found = blocks(Again(LENGTHS), held_out=3, size=len(LENGTHS) + 2)
    first, second, *others = NumberedRows(LENGTHS).rows(0, 0)
    assert found.held_out.report.rows_read == 2
    assert set(found.held_out.row_ids) == {first["id"], second["id"]}
    assert found.first.samples.report.rows_read == len(others)
    assert not {first["id"], second["id"]} & set(found.first.samples.row_ids)


def test_a_limit_evaluates_the_first_rows_that_are_held_out_and_trains_on_none_of_the_others() -> None:
    whole, few = (blocks(NumberedRows(LENGTHS), held_out=4, limit=limit) for limit in (None, 2))
    assert list(dict.fromkeys(few.held_out.row_ids)) == ["row-0", "row-1"]
    assert few.first.begin == whole.first.begin
    assert few.first.samples.row_ids[:] == whole.first.samples.row_ids[:]


def test_a_source_that_lost_rows_since_the_run_stopped_is_told() -> None:
    reader = StreamReader(NumberedRows(LENGTHS, stateful=False), "dataset 'numbered'", seed=0, say=lambda text: None)
    with pytest.raises(DataError, match="ended after 23 rows, and the run had read 30 of them"):
        reader.go_to(Position(read=30))


def test_the_report_says_whether_it_is_of_the_beginning_only() -> None:
    assert (
        blocks(NumberedRows(LENGTHS), size=5)
        .first.samples.report.describe()
        .startswith("the beginning of a stream: 5 rows")
    )
    assert not blocks(NumberedRows(LENGTHS), size=50).first.samples.report.is_prefix


class WaitingStream(NumberedRows):
    """Its next rows come when somebody lets them."""

    def __init__(self, lengths: Sequence[int], first: int) -> None:
        super().__init__(lengths)
        self.first, self.let = first, threading.Event()

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        for number, row in enumerate(super().rows(epoch, seed)):
            assert number < self.first or self.let.wait(60), "nobody lets them come"
            yield row


@pytest.mark.parametrize("resumed", [False, True], ids=["ahead", "on the way to a position"])
def test_rows_that_are_waited_for_end_with_the_wish_to_stop_and_none_is_lost(
    resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "REST_SECONDS", 0.1)
    whole = list(islice(loader(NumberedRows(LENGTHS)).windows(Position()), 4))
    source = WaitingStream(LENGTHS, first=10 if not resumed else 5)
    start = whole[0].after if resumed else Position()
    asked: list[int] = []
    windows, got = loader(source).windows(start, lambda: len(asked.append(1) or asked) > 2), []
    with pytest.raises(WaitingEnded):
        deque(map(got.append, windows))
    assert len(asked) == 3, "asked while it waits, and not in between"
    source.let.set()
    place = got[-1].after if got else start
    rest = islice(loader(NumberedRows(LENGTHS)).windows(place), 4 - len(got) - resumed)
    assert [window.row_ids for window in (*got, *rest)] == [window.row_ids for window in whole[resumed:]]


class Valued(Words):
    """Rows of two documents, whose tokens have a value."""

    def encode(self, row: Any) -> Sample | Rejected:
        ids = [row["number"]] * row["n"]
        return Sample(ids, [True] * row["n"], row["id"], None, [1, row["n"] - 1], {}, {"place": [1.0] * row["n"]})


def test_a_micro_batch_without_rows_has_the_columns_of_the_others() -> None:
    """Whatever reads them on one rank does so on all: the last step of three has one row."""
    reader = StreamReader(NumberedRows([4, 5, 6, 4, 5, 6, 7], once=True), "dataset 'numbered'", seed=5, say=print)
    source = Blocks(reader, Valued(), Rules(max_len=32, truncation="error"), size=5, held_out=0)
    options = {"sequence_len": 32, "packing": False, "micro_batch_size": 2, "global_batch_size": 3, "seed": 5}
    windows = all_windows(StreamLoader(source, Valued(), rank=1, world=2, **options))
    assert [[int(batch.trained_tokens > 0) for batch in window.batches] for window in windows] == [[1], [1], [0]]
    for window in windows:
        assert set(window.batches[0].tokens) == {"place"}
        assert window.batches[0].items is not None
