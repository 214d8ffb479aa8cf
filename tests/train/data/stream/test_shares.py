"""Shares of a stream: samples, statistics, steps and faults are those of one rank that encodes everything, for any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mt_core import DataError, Rejected, Sample
from mt_core.errors import ComponentError, MtError, WorkerError
from mt_core.nn import TokenObjective
from mt_core.rows import MediaItem, MediaSpan
from mt_train.data.encoding import Rules, encode
from mt_train.data.loader import Position, Window
from mt_train.data.outcomes import AT_ONCE, EncodesTogether
from mt_train.data.samples import EncodedSamples
from mt_train.data.stream.blocks import Blocks
from mt_train.data.stream.loader import StreamLoader
from mt_train.data.stream.reader import RowsInMemory, StreamReader
from mt_train.data.stream.shares import EncodingRanks, encode_shared, share_of

Row = dict[str, Any]


class Meeting:
    """Ranks of one machine as threads: what each gives, all get. One that stays away breaks it for the others."""

    def __init__(self, count: int) -> None:
        self._barrier, self._given = Barrier(count, timeout=60), [np.zeros(0, np.uint8)] * count
        self.bytes = 0

    def ranks(self, place: int) -> EncodingRanks:
        count = len(self._given)
        return EncodingRanks(
            ranks=range(4, 4 + count), place=place, gather=lambda content: self._gather(place, content)
        )

    def _gather(self, place: int, content: NDArray[np.uint8]) -> Sequence[NDArray[np.uint8]]:
        self._given[place] = content.copy()
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        self.bytes += len(content)
        return found

    def run(self, do: Callable[[int], Any]) -> list[Any]:
        """Return what each rank gets from ``do(place)``, or the error that it raises."""

        def attempt(place: int) -> Any:
            try:
                return do(place)
            except Exception as error:  # noqa: BLE001 - looked at by the test
                return error

        with ThreadPoolExecutor(len(self._given)) as pool:
            return list(pool.map(attempt, range(len(self._given))))


class Kinds(TokenObjective):
    """A row says what becomes of it: its tokens, and what they have beside them."""

    def encode(self, row: Any) -> Sample | Rejected:
        if row["n"] == 0:
            return Rejected(row.get("why", "empty"), row["id"])
        if error := row.get("raises"):
            raise {"data": DataError("is odd"), "component": ComponentError("broken"), "bug": KeyError("tokens")}[error]
        ids = [row["number"] + 3] * row["n"]
        more: dict[str, Any] = {}
        if row.get("weighted"):
            more["weights"] = [0.5] * len(ids)
        if row.get("pair"):
            more |= {"documents": [1, len(ids) - 1], "document_values": {"score": [1.0, float(row["number"])]}}
        if "values" in row:
            more["token_values"] = {"place": [float(row["values"])] * len(ids)}
        if "media" in row:
            item = MediaItem("dna", content=b"AC\0GT" * row["media"])
            more["media"] = [MediaSpan(1, 1, item, 5 * row["media"])] * (row["media"] % 3)
        return Sample(ids, [bool(row.get("pair"))] + [True] * (len(ids) - 1), row["id"], **more)


class Neighbours(Kinds):
    """A sample has something of the rows beside it: how many they are, and the number of the first."""

    def encode_together(self, rows: Sequence[Any]) -> list[Sample | Rejected | DataError]:
        return [Sample([1, len(rows), rows[0]["number"]], [True] * 3, row["id"]) for row in rows]


RULES = {
    "max_len": 12,
    "truncation": "split",
    "on_bad_row": "skip",
    "bos_id": 3,
    "begins": True,
    "stop_ids": frozenset([5]),
}


def rules(**options: Any) -> Rules:
    return Rules(**{**RULES, **options})


def row(number: int, n: int, **more: Any) -> Row:
    return {"id": f"row-{number}", "number": number, "n": n, **more}


def shared(
    rows: Sequence[Any], count: int, objective: TokenObjective | None = None, **options: Any
) -> list[EncodedSamples | Exception]:
    meeting, objective = Meeting(count), objective or Kinds()
    return meeting.run(
        lambda place: encode_shared(lambda: rows, objective, rules(**options), meeting.ranks(place), "'numbered'")
    )


def alone(rows: Sequence[Any], objective: TokenObjective | None = None, **options: Any) -> EncodedSamples | Exception:
    try:
        return encode(RowsInMemory(rows), range(len(rows)), objective or Kinds(), rules(**options))
    except Exception as error:  # noqa: BLE001 - looked at by the test
        return error


def assert_same(found: EncodedSamples | Exception, expected: EncodedSamples | Exception) -> None:
    if isinstance(expected, Exception) or isinstance(found, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
        return
    assert found.report == expected.report
    assert list(found.report.rows_dropped) == list(expected.report.rows_dropped), "in the order in which they are shown"
    assert found.names == expected.names
    for name, values in expected.columns.items():
        assert found.columns[name].dtype == values.dtype, name
        assert found.columns[name].tobytes() == values.tobytes(), name
    assert found.fingerprint() == expected.fingerprint()


lengths = st.sampled_from([0, 1, 2, 5, 12, 13, 30])
kinds = st.fixed_dictionaries({"weighted": st.booleans(), "bad": st.booleans(), "why": st.sampled_from("abc")})


@given(st.lists(st.tuples(lengths, kinds), max_size=30), st.integers(1, 6), st.booleans(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_samples_and_statistics_are_those_of_one_rank(
    made: list[tuple[int, Row]], count: int, pairs: bool, most: int
) -> None:
    def one(number: int, n: int, kind: Row) -> Any:
        if kind["bad"] and number % 4 == 0:
            return DataError(f"row-{number} is faulty")
        pair = pairs and {"pair": True, "values": number, "weighted": False}
        return row(number, max(n, 2) if pair and n else n, **kind | (pair or {}))

    rows, options = [one(number, *each) for number, each in enumerate(made)], {"max_bad_rows": most}
    options |= {"truncation": "drop"} if pairs else {}
    expected = alone(rows, **options)
    for found in shared(rows, count, **options):
        assert_same(found, expected)


@given(st.integers(0, 300), st.integers(1, 9), st.sampled_from([1, 7, AT_ONCE]))
def test_shares_are_all_rows_in_their_order_and_as_even_as_runs_allow(count: int, ranks: int, together: int) -> None:
    parts = [list(range(count)[share_of(count, place, ranks, together=together)]) for place in range(ranks)]
    assert [number for part in parts for number in part] == list(range(count))
    assert all(part[0] % together == 0 for part in parts if part)
    assert max(map(len, parts)) - min(map(len, parts)) < 2 * together


def test_rows_that_are_encoded_beside_others_have_the_same_ones_beside_them() -> None:
    assert isinstance(Neighbours(), EncodesTogether)
    rows = [row(number, 3) for number in range(3 * AT_ONCE + 5)]
    expected = alone(rows, Neighbours())
    assert not isinstance(expected, Exception)
    assert expected[2 * AT_ONCE].ids[2] == 2 * AT_ONCE
    for found in shared(rows, 3, Neighbours()):
        assert_same(found, expected)


FAULTS: dict[str, tuple[dict[int, str], dict[str, Any]]] = {
    "a bad row": ({7: "data"}, {"on_bad_row": "error"}),
    "two bad rows": ({7: "data", 2: "data"}, {"on_bad_row": "error"}),
    "too many bad rows of several ranks": ({1: "data", 3: "data", 6: "data", 8: "data"}, {"max_bad_rows": 2}),
    "too many of the last rank alone": (dict.fromkeys((1, 6, 7, 8, 9), "data"), {"max_bad_rows": 3}),
    "a plugin's fault": ({9: "component"}, {}),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("count", [2, 3])
def test_every_rank_raises_what_one_that_encodes_everything_raises(kind: str, count: int) -> None:
    at, options = FAULTS[kind]
    rows = [row(number, 4, raises=at.get(number)) for number in range(10)]
    expected = alone(rows, **options)
    assert isinstance(expected, MtError)
    for found in shared(rows, count, **options):
        assert_same(found, expected)


def test_a_fault_of_code_is_raised_where_it_is_and_named_by_the_others() -> None:
    mine, *others = reversed(shared([row(number, 4, raises="bug" if number == 8 else None) for number in range(9)], 3))
    assert isinstance(mine, KeyError)
    assert [type(each) for each in others] == [WorkerError] * 2
    assert {str(each) for each in others} == {
        "rank 6 could not encode its share of 'numbered' (KeyError: 'tokens'); its log says where"
    }


def test_samples_of_other_columns_are_refused_as_by_one_rank() -> None:
    rows = [row(number, 4, pair=number >= 4) for number in range(9)]
    expected = alone(rows)  # the first of the second share
    assert "row-4: the objective gives a sample with document.score" in str(expected)
    for found in shared(rows, 2):
        assert isinstance(found, ComponentError)
        assert str(found) == str(expected)


@pytest.mark.parametrize(
    "change", [lambda rows: rows[:-1], lambda rows: [*rows[:-1], row(99, 4)]], ids=["fewer", "other"]
)
def test_ranks_that_read_other_rows_are_told_so(change: Callable[[list[Row]], list[Row]]) -> None:
    rows, meeting = [row(number, 4) for number in range(9)], Meeting(2)
    found = meeting.run(
        lambda place: encode_shared(
            lambda: change(rows) if place else rows, Kinds(), rules(), meeting.ranks(place), "'numbered'"
        )
    )
    assert [type(each) for each in found] == [DataError] * 2
    assert all("rank 5 has read other rows of 'numbered' than rank 4" in str(each) for each in found)


def test_a_rank_that_cannot_read_is_heard_by_the_others() -> None:
    rows, meeting = [row(number, 4) for number in range(9)], Meeting(3)

    def read(place: int) -> list[Row]:
        if place == 1:
            raise DataError("the disk is gone")
        return rows

    found = meeting.run(
        lambda place: encode_shared(lambda: read(place), Kinds(), rules(), meeting.ranks(place), "'numbered'")
    )
    assert [(type(each), str(each)) for each in found] == [(DataError, "the disk is gone")] * 3


def test_reasons_are_shown_in_the_order_of_rows() -> None:
    rows = [row(0, 0, why="too old"), row(1, 0, why="empty"), row(2, 4), row(3, 4)]
    for found in shared(rows, 2):
        assert not isinstance(found, Exception)
        assert list(found.report.rows_dropped) == ["too old", "empty"]


def test_media_come_with_their_samples() -> None:
    reader: Any = object()  # which is there where a run has encoders, and reads nothing yet
    rows = [row(number, 4, media=number) for number in range(9)]
    expected = alone(rows, reader=reader)
    assert not isinstance(expected, Exception)
    assert len(expected[5].media) == 2
    for found in shared(rows, 4, reader=reader):
        assert_same(found, expected)
        assert not isinstance(found, Exception)
        assert found.reader is reader
        assert [each.media for each in found] == [each.media for each in expected]


def test_odd_ids_and_reports_come_through() -> None:
    rows = [{**row(number, 4), "id": f"ü\udcff/{number}\n\0"} for number in range(5)]
    for found in shared(rows, 2):
        assert_same(found, alone(rows))


# --------------------------------------------------------------------------------------------------------------- blocks


class Source:
    """Rows of these lengths, below 0 a bad one; with a state."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.given, self.start = lengths, 0, 0

    def rows(self, epoch: int, seed: int) -> Iterator[Any]:
        start, self.start = self.start, 0
        for number, n in islice(enumerate(self.lengths), start, None):
            self.given = number + 1
            yield DataError(f"row-{number} is faulty") if n < 0 else row(number, n)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["given"]


class Counting(Kinds):
    """Remembers the rows that it has encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []

    def encode(self, row: Any) -> Sample | Rejected:
        self.encoded.append(row["id"])
        return super().encode(row)


LENGTHS = [3, 9, 7, 2, -1, 12, 11, 9, 5, 12, 9, 4, 0, 0, 0, 0, 0, 0, 4, 28, -1, 6, 17, 21, 2, 2, 30, 5, 11]
Steps = tuple[list[Window], Blocks, Counting, list[str]]


def take(place: Position, steps: int, rank: int, world: int, meeting: Meeting | None, size: int = 6) -> Steps:
    """The next steps of a rank, which encodes alone or in a meeting."""
    said: list[str] = []
    objective = Counting()
    reader = StreamReader(Source(LENGTHS), "dataset 'numbered'", seed=5, say=said.append)
    blocks = Blocks(reader, objective, rules(), size=size, held_out=2)
    if meeting is not None:
        blocks.share(meeting.ranks(rank))
    options: dict[str, Any] = {"sequence_len": 16, "packing": True, "micro_batch_size": 1, "global_batch_size": 2}
    loader = StreamLoader(blocks, objective, rank=rank % world, world=world, seed=5, **options)
    return list(islice(loader.windows(place), steps)), blocks, objective, said


def assert_same_steps(found: Steps, expected: Steps) -> None:
    assert len(found[0]) == len(expected[0])
    for own, other in zip(found[0], expected[0], strict=True):
        assert (own.row_ids, own.after) == (other.row_ids, other.after)
        for a, b in zip(own.batches, other.batches, strict=True):
            assert torch.equal(a.input_ids, b.input_ids)
            assert torch.equal(a.labels, b.labels)
    assert found[1].report == expected[1].report
    assert found[3] == expected[3]


@pytest.mark.parametrize("world", [2, 4])
def test_steps_reports_and_what_is_said_are_those_of_ranks_that_encode_everything(world: int) -> None:
    meeting = Meeting(world)
    found = meeting.run(lambda rank: take(Position(), 30, rank, world, meeting))
    expected = [take(Position(), 30, rank, world, None) for rank in range(world)]
    assert expected[0][0][-1].after.epoch >= 2, "in three epochs"
    assert expected[0][3], "bad rows are said"
    for own, other in zip(found, expected, strict=True):
        assert not isinstance(own, Exception), own
        assert_same_steps(own, other)
    first_block = 7  # good rows that each rank encodes by itself, with those that are held out
    encoded = [len(own[2].encoded) - first_block for own in found]
    everything = len(expected[0][2].encoded) - first_block
    assert sum(encoded) == everything
    assert max(encoded) <= 1.5 * everything / world, "blocks of six rows are not divided evenly"


@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), (2, 3)])
def test_a_run_is_resumed_to_the_bit_by_another_number_of_ranks(worlds: tuple[int, int]) -> None:
    def run(place: Position, steps: int, world: int) -> list[Steps]:
        meeting = Meeting(world) if world > 1 else None
        do = lambda rank: take(place, steps, rank, 1, meeting)  # noqa: E731 - every rank has all rows of a step
        return meeting.run(do) if meeting else [do(0)]

    whole = run(Position(), 12, 1)[0][0]
    for step in (1, 4, 7, 9):
        first = run(Position(), step, worlds[0])[0][0]
        stored = Position(**json.loads(json.dumps(asdict(first[-1].after))))
        for rest in run(stored, 12 - step, worlds[1]):
            for own, other in zip(rest[0], whole[step:], strict=True):
                assert (own.row_ids, own.after) == (other.row_ids, other.after)
                assert all(map(torch.equal, (b.input_ids for b in own.batches), (b.input_ids for b in other.batches)))
