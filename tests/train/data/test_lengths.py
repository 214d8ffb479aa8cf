"""Samples that are too long: limits hold, begin and stop stay, and nothing trained is lost without being counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Rejected, Row, Sample
from mt_core.errors import DataError
from mt_train.data.encoding import Rules, encode
from mt_train.data.lengths import NOTHING_LEFT, Lengths, fit

BEGIN, STOP = 1, 2


def chat(prompt: int, answer: int, *, after: int = 0, stop: bool = True) -> Sample:
    """Begin, a prompt, an answer and a stop token that are trained, and what follows them (a line end)."""
    ids = [BEGIN, *range(100, 100 + prompt), *range(500, 500 + answer), *([STOP] if stop else []), *[9] * after]
    trained = [False] * (1 + prompt) + [True] * (answer + stop) + [False] * after
    return Sample(ids, trained, "rows.jsonl:7", [float(place) for place in range(len(ids))])


def limits(**given: Any) -> Lengths:
    return Lengths(**{"max_len": 10, "truncation": "right", "bos_id": BEGIN, "stop_ids": frozenset([STOP]), **given})


def cut(sample: Sample, **given: Any) -> list[int]:
    """The ids that are left, which must carry their own trained flag and weight."""
    pieces = fit(sample, limits(**given))
    assert not isinstance(pieces, Rejected)
    (piece,) = pieces
    whole = list(zip(sample.ids, sample.trained, sample.weights or (), strict=True))
    assert all(each in whole for each in zip(piece.ids, piece.trained, piece.weights or (), strict=True))
    return list(piece.ids)


def test_what_fits_stays_the_same_object() -> None:
    sample = chat(3, 3)
    assert fit(sample, limits(max_source_len=4, max_target_len=4)) == [sample]


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        ("right", [BEGIN, 100, 101, 102, 103, 104, 500, 501, 502, STOP]),
        ("left", [BEGIN, 103, 104, 500, 501, 502, 503, 504, 505, STOP]),
        ("middle", [BEGIN, 100, 101, 102, 103, 502, 503, 504, 505, STOP]),
    ],
)
def test_a_cut_keeps_the_begin_and_the_stop_token(side: str, expected: list[int]) -> None:
    assert cut(chat(5, 6), truncation=side) == expected


@pytest.mark.parametrize(
    ("side", "prompt", "answer"),
    [
        ("right", [BEGIN, 100, 101], [500, 501, STOP]),
        ("left", [BEGIN, 106, 107], [504, 505, STOP]),
        ("middle", [BEGIN, 100, 107], [500, 501, STOP]),
    ],
)
def test_prompt_and_answer_have_limits_of_their_own(side: str, prompt: list[int], answer: list[int]) -> None:
    got = cut(chat(8, 6), truncation=side, max_source_len=3, max_target_len=3, max_len=99)
    assert got[:3] == prompt
    assert got[3:] == answer if side != "middle" else got[3] == 500 and got[-1] == STOP


def two_turns() -> Sample:
    """Begin, a prompt of 3, an answer of 2 with its stop token, a prompt of 4, and an answer of 3 with its."""
    ids = [BEGIN, 100, 101, 102, 500, 501, STOP, 200, 201, 202, 203, 600, 601, 602, STOP]
    trained = [False] * 4 + [True] * 3 + [False] * 4 + [True] * 4
    return Sample(ids, trained, "rows.jsonl:7", [float(place) for place in range(len(ids))])


@pytest.mark.parametrize(
    ("max_len", "expected"),
    [
        (14, [BEGIN, 100, 101, 102, 500, 501, STOP, 200, 201, 202, 203, 600, 601, STOP]),
        *((most, [BEGIN, 100, 101, 102, 500, 501, STOP]) for most in range(8, 13)),  # within the second prompt
        (7, [BEGIN, 100, 101, 102, 500, 501, STOP]),
        (6, [BEGIN, 100, 101, 102, 500, STOP]),
    ],
)
def test_a_cut_within_a_prompt_teaches_no_stop_there(max_len: int, expected: list[int]) -> None:
    assert cut(two_turns(), max_len=max_len) == expected
    assert cut(two_turns(), max_len=99, max_target_len=max_len - 4) == expected


def test_what_follows_the_stop_token_goes_first() -> None:
    assert cut(chat(3, 4, after=5), truncation="right") == [BEGIN, 100, 101, 102, 500, 501, 502, 503, STOP, 9]
    assert cut(chat(3, 4, after=5), truncation="left", max_len=9)[-1] == STOP


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_len": 8}, ("rows.jsonl:7: 11 tokens exceed data.max_len=8", "--data.max-len and --train.sequence-len")),
        ({"max_source_len": 3}, ("6 tokens of the prompt exceed data.max_source_len=3", "--data.max-source-len")),
        ({"max_target_len": 3}, ("5 tokens of the trained part exceed data.max_target_len=3", "max-target-len")),
    ],
)
def test_an_error_names_the_row_the_limit_and_the_ways_out(given: dict[str, int], says: Sequence[str]) -> None:
    with pytest.raises(DataError) as caught:
        fit(chat(5, 4), limits(**{"max_len": 99, **given}, truncation="error"))
    for words in (*says, "--data.truncation drop, left, right, middle or split"):
        assert words in str(caught.value)


def test_a_dropped_row_says_which_limit_it_broke() -> None:
    assert fit(chat(5, 6), limits(truncation="drop")) == Rejected("longer than data.max_len", "rows.jsonl:7")
    rejected = fit(chat(5, 6), limits(truncation="drop", max_len=99, max_target_len=2))
    assert rejected == Rejected("longer than data.max_target_len", "rows.jsonl:7")


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_a_stop_of_several_tokens_stays_whole(side: str) -> None:
    stop = [60, 124, 62]
    spelt = Sample([BEGIN, 100, 101, *range(500, 506), *stop], [False] * 3 + [True] * 9, "row")
    (piece,) = fit(spelt, limits(truncation=side, max_len=7, stop_ids=frozenset(), stop_tokens=3))
    assert list(piece.ids)[-3:] == stop
    assert len(piece.ids) == 7
    nothing = fit(spelt, limits(truncation="right", max_len=6, stop_ids=frozenset(), stop_tokens=3))
    assert nothing == Rejected(NOTHING_LEFT, "row")


@pytest.mark.parametrize("max_len", [5, 6, 7, 8])
def test_a_stop_of_several_tokens_is_not_begun_twice_where_a_cut_is_within_it(max_len: int) -> None:
    """Two turns: a prompt of 2 tokens, an answer of 1, and its stop of 2."""
    ids, trained = [100, 101, 500, 3, 4, 200, 201, 600, 3, 4], [False, False, True, True, True] * 2
    asked = limits(truncation="right", max_len=max_len, stop_ids=frozenset(), stop_tokens=2)
    pieces = fit(Sample(ids, trained, "row"), asked)
    assert not isinstance(pieces, Rejected)
    assert [list(piece.ids) for piece in pieces] == [ids[:5]]


def test_a_row_of_which_only_the_stop_token_would_be_trained_is_dropped() -> None:
    assert fit(chat(20, 6), limits(truncation="right")) == Rejected(NOTHING_LEFT, "rows.jsonl:7")
    assert fit(chat(20, 6, stop=False), limits(truncation="right")) == Rejected(NOTHING_LEFT, "rows.jsonl:7")


@given(st.integers(2, 200), st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_splitting_a_sample_predicts_every_token_once(length: int, max_len: int) -> None:
    pieces = fit(Sample(list(range(length)), [True] * length, "row"), limits(max_len=max_len, truncation="split"))
    assert not isinstance(pieces, Rejected)
    assert all(len(piece.ids) <= max_len for piece in pieces)
    assert [token for piece in pieces for token in list(piece.ids)[1:]] == list(range(1, length))


class Chats:
    """Rows and objective in one: the rows are samples already."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def row(self, index: int) -> Row:
        return {"id": f"rows.jsonl:{index + 1}", "sample": self._samples[index]}

    def encode(self, row: Row) -> Sample:
        return replace(row["sample"], row_id=row["id"])


CHATS = st.builds(
    chat, st.integers(0, 30), st.integers(0, 30), after=st.integers(0, 3), stop=st.booleans()
)  # an empty answer without a stop token among them


@given(
    st.lists(CHATS, max_size=12),
    st.sampled_from(["drop", "left", "right", "middle", "split"]),
    st.integers(2, 40),
    st.integers(1, 40) | st.none(),
    st.integers(1, 40) | st.none(),
)
@settings(max_examples=300, deadline=None)
def test_limits_hold_and_every_row_and_trained_token_is_accounted_for(
    samples: list[Sample], truncation: str, max_len: int, source: int | None, target: int | None
) -> None:
    if truncation == "split":
        source = target = None
    rows = Chats(samples)
    given = {"max_len": max_len, "max_source_len": source, "max_target_len": target, "truncation": truncation}
    rules = Rules(**given, bos_id=BEGIN, stop_ids=frozenset([STOP]))
    kept = encode(rows, range(len(rows)), rows, rules)
    report = kept.report
    for piece in kept:
        first = list(piece.trained).index(True)
        assert len(piece.ids) <= max_len
        assert truncation == "split" or (source is None or first <= source)
        assert target is None or len(piece.ids) - first <= target
    assert report.rows_read == len(samples) == report.rows_kept + report.rows_dropped.total()
    used = [sample for sample in samples if any(sample.trained[1:])]
    dropped = report.rows_dropped.total() - (len(samples) - len(used))
    if truncation not in ("split", "drop"):
        assert len(kept) == report.rows_kept
    if not dropped:
        assert report.tokens_trained + report.trained_cut == sum(sum(sample.trained[1:]) for sample in used)
        stops = sum(sample.ids.count(STOP) for sample in used)
        assert sum(list(piece.ids)[1:].count(STOP) for piece in kept) == stops, "a stop token was cut"
        assert report.rows_without_stop == len(used) - stops
