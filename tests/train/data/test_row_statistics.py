"""Counts that add up whatever the chunks are, against plain Python; thresholds; and JSON there and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt_core import Rejected, Row, Sample
from mt_core.errors import DataError
from mt_train.data import measures
from mt_train.data.encoding import Rules, encode
from mt_train.data.findings import THRESHOLDS, findings, refuse_findings
from mt_train.data.measures import compare, count_duplicates, fill_ratios, measure, row_of_id, sample_hashes
from mt_train.data.media.rules import MediaRules
from mt_train.data.order import permutation
from mt_train.data.packing import next_fit, pack
from mt_train.data.row_statistics import BAD_ROW, PLACES, RowStatistics
from mt_train.data.samples import EncodedSamples

BEGIN, STOP = 1, 2


class Source:
    """Rows and objective in one; ``None`` is a row that the objective rejects, a text one that is bad."""

    def __init__(self, samples: Sequence[Sample | str | None]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def row(self, index: int) -> Row:
        sample = self._samples[index]
        if isinstance(sample, str):
            raise DataError(f"r:{index}: {sample}")
        return {"id": f"r:{index}", "sample": sample}

    def encode(self, row: Row) -> Sample | Rejected:
        sample: Sample | None = row["sample"]
        return Rejected("'text' is empty", row["id"]) if sample is None else replace(sample, row_id=row["id"])


def sample(*ids: int, trained: int = 0, after: int = 0) -> Sample:
    """All tokens from number ``trained`` on are trained, but for the last ones that come ``after``."""
    return Sample(list(ids), [trained <= place < len(ids) - after for place in range(len(ids))], "")


def encode_rows(rows: Sequence[Sample | str | None], part: range | None = None, **given: Any) -> EncodedSamples:
    source = Source(rows)
    options = {"max_len": 8, "truncation": "right", "bos_id": BEGIN, "stop_ids": frozenset([STOP]), **given}
    return encode(source, range(len(rows)) if part is None else part, source, Rules(**options))


def finish(samples: EncodedSamples) -> RowStatistics:
    count_duplicates(samples)
    samples.report.filled = fill_ratios(samples, sequence_len=8, rows_at_a_time=2, seed=0)
    return samples.report


SAMPLES = st.builds(
    lambda ids, trained, after: sample(*ids, trained=min(trained, len(ids) - 1), after=after),
    st.lists(st.integers(0, 5), min_size=2, max_size=20),
    st.integers(0, 20),
    st.integers(0, 2),
)


@given(st.lists(SAMPLES | st.none(), min_size=1, max_size=20), st.integers(0, 20), st.sampled_from(["right", "split"]))
@settings(max_examples=150, deadline=None)
def test_reports_of_chunks_add_up_to_that_of_all_rows(rows: list[Any], cut: int, truncation: str) -> None:
    cut = min(cut, len(rows))
    whole = encode_rows(rows, truncation=truncation).report
    parts = [encode_rows(rows, range(*ends), truncation=truncation).report for ends in ((0, cut), (cut, len(rows)))]
    assert parts[0] + parts[1] == whole
    hashes = (parts[0] + parts[1]).hashes
    assert hashes is not None
    assert np.array_equal(hashes, whole.hashes)


@given(st.lists(SAMPLES | st.none(), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_figures_equal_those_counted_one_by_one(rows: list[Any]) -> None:
    samples = encode_rows(rows, truncation="split")
    report, pieces = finish(samples), list(samples)
    of_rows = [list(group) for _, group in groupby(pieces, key=lambda piece: piece.row_id)]
    seen = [tuple((tuple(piece.ids), tuple(piece.trained)) for piece in row) for row in of_rows]
    assert report.duplicates == len(seen) - len(set(seen))
    assert report.longest == max((len(piece.ids) for piece in pieces), default=0)
    assert report.lengths == Counter(1 << (len(piece.ids) - 1).bit_length() for piece in pieces)
    assert report.highest_id == max((int(max(piece.ids)) for piece in pieces), default=-1)
    first = [piece for number, piece in enumerate(pieces) if number == 0 or pieces[number - 1].row_id != piece.row_id]
    doubled = [(BEGIN, BEGIN) in pairwise(piece.ids) for piece in first]
    assert report.begin_tokens == Counter(
        2 if is_doubled else int(piece.ids[0] == BEGIN) for is_doubled, piece in zip(doubled, first, strict=True)
    )
    ends = {piece.row_id: [i for i, on in zip(piece.ids, piece.trained, strict=True) if on][-1] for piece in pieces}
    assert report.rows_without_stop == sum(end != STOP for end in ends.values())


@given(st.lists(SAMPLES | st.none(), max_size=8))
@settings(max_examples=50, deadline=None)
def test_a_report_comes_back_out_of_json(rows: list[Any]) -> None:
    samples = encode_rows([*rows, "broken"], on_bad_row="skip")
    report = finish(samples)
    assert RowStatistics.from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_equal_ids_that_are_trained_elsewhere_are_no_duplicate() -> None:
    rows = [sample(1, 5, 6, 2), sample(1, 5, 6, 2, trained=2), sample(1, 5, 6, 2), sample(1, 6, 5, 2)]
    report = finish(encode_rows(rows))
    assert (report.duplicates, report.places["duplicate"]) == (1, ["r:2"])


def test_a_row_that_a_mix_repeats_is_no_duplicate_of_itself() -> None:
    samples = EncodedSamples()
    for name in ("a:1", "b:1", "a:1", "b:2", "a:1"):  # b:2 says what b:1 says
        samples.add(replace(sample(*((1, 5, 2) if name == "a:1" else (1, 6, 2))), row_id=name))
    measure(samples, Rules(max_len=8, truncation="right"))
    report = finish(samples)
    assert (report.duplicates, report.places["duplicate"]) == (1, ["b:2"])


@pytest.mark.parametrize("together", [1, 5, 1 << 15])
def test_hashes_are_the_same_however_many_tokens_are_hashed_together(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Plain integers modulo 2**64, as the definition has it."""
    random = np.random.Generator(np.random.PCG64(3))
    lengths = random.integers(1, 9, size=12)
    bounds, count = np.append(0, lengths.cumsum()), int(lengths.sum())
    ids, trained = random.integers(0, 2**31, size=count, dtype=np.int32), random.random(count) < 0.5
    factors = np.random.Generator(np.random.PCG64(0)).integers(2**64, size=int(lengths.max()), dtype=np.uint64).tolist()
    expected = []
    for begin, end in pairwise(bounds):
        scattered = [
            (int(token) * 2 + int(on) + 1) * 0x9E3779B97F4A7C15 % 2**64
            for token, on in zip(ids[begin:end], trained[begin:end], strict=True)
        ]
        terms = ((each ^ each >> 32) * factor for each, factor in zip(scattered, factors, strict=False))
        expected.append(sum(terms) % 2**64)
    monkeypatch.setattr("mt_train.data.measures.HASHED_TOKENS", together)
    assert sample_hashes(ids, trained, bounds).tolist() == expected


def test_hashes_of_a_hundred_thousand_similar_samples_are_all_different() -> None:
    ids = np.stack(np.unravel_index(np.arange(10**5), (10,) * 5), axis=1).astype(np.int32)
    bounds = np.arange(10**5 + 1) * 5
    assert len(np.unique(sample_hashes(ids.ravel(), np.ones(ids.size, np.bool_), bounds))) == 10**5


def test_held_out_samples_that_are_also_trained_on_are_counted() -> None:
    train, out = encode_rows([sample(1, 5, 2), sample(1, 6, 2)]), encode_rows([sample(1, 7, 2), sample(1, 6, 2)])
    finish(train)
    compare(train, out)
    assert (out.report.also_trained, out.report.places["also trained on"]) == (1, ["r:1"])


def test_a_begin_token_that_is_the_stop_token_too_is_looked_for_at_the_start() -> None:
    report = encode_rows([sample(2, 5, 2), sample(5, 2, 2)], bos_id=STOP).report
    assert report.begin_tokens == {1: 1, 0: 1}


@pytest.mark.parametrize(
    ("ids", "is_told"),
    [((1, 5, 2, 1, 6, 2), False), ((1, 1, 5, 2), True), ((1, 5, 2, 1, 1, 6, 2), True), ((1, 5, 6, 2), False)],
    ids=["of each turn, or of either half of a pair", "doubled at the start", "doubled later", "one"],
)
def test_only_two_begin_tokens_in_a_row_are_told(ids: tuple[int, ...], is_told: bool) -> None:
    report = encode_rows([sample(*ids), sample(1, 6, 2)]).report
    assert any("two begin tokens in a row" in line for line in findings(report, "train")) == is_told
    assert report.begin_tokens == ({1: 1, 2: 1} if is_told else {1: 2})


def test_a_tokenizer_without_special_tokens_is_not_asked_for_them() -> None:
    report = encode_rows([sample(5, 6, 7)], bos_id=None, stop_ids=frozenset()).report
    assert (report.begin_tokens, report.rows_without_stop) == ({}, 0)


def test_a_negative_id_is_an_error_that_names_its_row() -> None:
    with pytest.raises(DataError, match=r"r:1: token id -3 is below 0"):
        encode_rows([sample(1, 5, 2), sample(1, -3, 2)])


def test_the_row_of_an_id_is_found() -> None:
    assert row_of_id(encode_rows([sample(1, 5, 2), sample(1, 99, 2), sample(1, 99, 2)]), 99) == "r:1"


def of_lengths(lengths: Sequence[int] | np.ndarray[Any, Any]) -> EncodedSamples:
    return EncodedSamples({"ends": np.append(0, np.cumsum(lengths)).astype(np.int64)})


def test_how_full_rows_are_is_what_packing_and_padding_give() -> None:
    lengths = np.array([3, 5, 8, 2, 2, 7, 1])
    samples = of_lengths(lengths)
    share = fill_ratios(samples, sequence_len=8, rows_at_a_time=7, seed=0)
    assert share["padding"] == pytest.approx(28 / (7 * 8))
    assert share["packing"] == pytest.approx(28 / (8 * len(pack(range(7), lengths.tolist(), 8, seed=0, epoch=0))))
    assert fill_ratios(samples, sequence_len=8, rows_at_a_time=1, seed=0)["padding"] == 0.5, "8 places a row"
    order = permutation(7, seed=1, epoch=0, shuffle=True)
    ordered = fill_ratios(samples, sequence_len=8, rows_at_a_time=7, seed=1, packing="sequential")["packing"]
    assert ordered == pytest.approx(28 / (8 * len(next_fit(lengths[order].tolist(), 8)))) != share["packing"]
    tight = fill_ratios(samples, sequence_len=10, rows_at_a_time=1, seed=0, pad_multiple=3)["padding"]
    assert tight == pytest.approx(28 / (3 + 6 + 9 + 3 + 3 + 9 + 3))
    assert fill_ratios(samples, sequence_len=8, rows_at_a_time=1, seed=0, pad_multiple=100)["padding"] == 0.5, (
        "no longer row"
    )
    assert fill_ratios(of_lengths([]), sequence_len=8, rows_at_a_time=1, seed=0) == {}


def test_how_full_rows_are_is_told_from_some_of_many_which_nobody_puts_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = of_lengths(np.random.default_rng(0).integers(1, 100, 40_000))
    every = fill_ratios(samples, sequence_len=128, rows_at_a_time=8, seed=0)
    monkeypatch.setattr(measures, "WINDOW", 40_000)
    whole = fill_ratios(samples, sequence_len=128, rows_at_a_time=8, seed=0)
    monkeypatch.undo()
    monkeypatch.setattr(measures, "permutation", None)
    assert fill_ratios(samples, sequence_len=128, rows_at_a_time=8, seed=0) == every != whole
    assert every == pytest.approx(whole, rel=0.01)


def test_only_the_first_rows_of_a_kind_are_named() -> None:
    report = encode_rows([None] * 20 + [sample(1, 5, 2)]).report
    assert report.places == {"'text' is empty": [f"r:{number}" for number in range(PLACES)]}
    assert report.rows_dropped == {"'text' is empty": 20}


# --------------------------------------------------------------------------------------------------------- thresholds

GOOD = [sample(1, number, 2) for number in range(5, 105)]
BROKEN = {
    "no trained token": ([Sample([1, 5, 2], [False] * 3, "")], "1 of 101 rows have no trained token"),
    "stop": ([sample(1, 5, 6)], "1 of 101 rows do not end in a stop token that is trained on"),
    "no begin": ([sample(5, 6, 2)], "1 of 101 samples begin without"),
    "two begins": ([sample(1, 1, 6, 2)], "1 of 101 samples have two begin tokens in a row"),
    "truncated": ([sample(1, *range(5, 20), n, 2) for n in range(6)], "6 of 106 rows were truncated, more than 5%"),
    "dropped": ([None, None], "2 of 102 rows were dropped, more than 1% (2 × 'text' is empty)"),
    "duplicates": (GOOD[:13], "13 of 113 rows are duplicates, more than 10% (r:100, r:101, r:102, …)"),
}
"""What is added to a hundred good rows, and what is said then."""


@pytest.mark.parametrize(("rows", "says"), BROKEN.values(), ids=BROKEN)
def test_each_threshold_gives_one_line_that_says_what_to_do(rows: list[Any], says: str) -> None:
    assert findings(finish(encode_rows(GOOD)), "training") == []
    found = [line for line in findings(finish(encode_rows([*GOOD, *rows])), "training") if says in line]
    assert len(found) == 1, findings(finish(encode_rows([*GOOD, *rows])), "training")
    assert found[0].startswith("training: ")
    assert "; " in found[0]


@pytest.mark.parametrize(
    "rows", [[sample(1, *range(5, 20), n, 2) for n in range(5)], [None], GOOD[:11]], ids=["cut", "dropped", "twice"]
)
def test_at_a_threshold_nothing_is_said(rows: list[Any]) -> None:
    assert findings(finish(encode_rows([*GOOD[: 100 - len(rows) * (rows[0] is None)], *rows])), "training") == []


def test_a_share_of_trained_tokens_below_a_percent_is_told() -> None:
    rows = [sample(1, *[number] * 200, 2, trained=201) for number in range(5, 15)]
    (line,) = findings(finish(encode_rows(rows, max_len=300)), "training")
    assert "10 of 2,020 tokens (0.5%) are trained on, less than 1%" in line


def test_held_out_rows_that_are_trained_on_are_told() -> None:
    train, out = encode_rows(GOOD), encode_rows(GOOD[:2])
    finish(train)
    compare(train, out)
    assert any("2 of 2 held-out rows are also trained on" in line for line in findings(out.report, "held out"))


class Texts:
    """Rows of any fields; every row becomes the same good sample."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        return {"id": f"r:{index}", **self._rows[index]}

    def encode(self, row: Row) -> Sample | Rejected:
        return sample(1, 5 + int(row["id"].partition(":")[2]), 2)


SPELLING = [
    {"text": "the end </s>."},
    {"messages": [{"role": "user", "content": "what is <|im_end|>"}]},
    {"tools": {"</s>": 1}, "text": ""},
]
PLAIN = [{"text": "< /s> <|im_end|"}, {"input_ids": [1, 2], "labels": ["</s>"]}]


def test_rows_that_spell_special_tokens_are_counted_named_and_told_when_they_are_many() -> None:
    def read(rows: list[dict[str, Any]], *specials: str) -> EncodedSamples:
        source = Texts(rows)
        rules = Rules(max_len=8, truncation="error", bos_id=1, stop_ids=frozenset([2]), special_texts=specials)
        return encode(source, range(len(rows)), source, rules)

    assert read([*SPELLING, *PLAIN]).report.rows_spelling == 0, "a tokenizer without any"
    found = finish(read([*SPELLING, *PLAIN], "</s>", "<|im_end|>"))
    assert (found.rows_spelling, found.places["special tokens as text"]) == (3, ["r:0", "r:1", "r:2"])
    (line,) = findings(found, "training")
    assert line.startswith(
        "training: 3 of 5 rows spell special tokens, which are read as text, more than 10% (r:0, r:1, r:2)"
    )
    assert "--tokenizer.parse-specials" in line
    assert findings(finish(read([SPELLING[0], *[PLAIN[0]] * 9], "</s>")), "training") == []


def test_rows_with_a_place_of_media_and_none_are_counted_where_something_reads_such_media() -> None:
    def read(*kinds: str) -> EncodedSamples:
        rows = [{"text": "an <image> here"}, {"text": "<dna>"}, {"text": "images"}]
        source, media = Texts(rows), MediaRules(kinds=frozenset(kinds), roots=()) if kinds else None
        rules = Rules(max_len=8, truncation="error", bos_id=1, stop_ids=frozenset([2]), media=media)
        return encode(source, range(len(rows)), source, rules)

    assert read().report.rows_without_media == 0, "a run without encoders"
    (line,) = findings(finish(read("image")), "training")
    assert line.startswith("training: 1 of 3 rows have a place for media and none to stand there")
    assert "(r:0)" in line
    assert read("dna", "image").report.rows_without_media == 2


def test_rows_in_two_forms_are_told_where_no_template_is_chosen() -> None:
    def read(*systems: str | None, differ: bool = True) -> RowStatistics:
        source = Texts([{"prompt": "a", "response": "b", "system": system} for system in systems])
        rules = Rules(max_len=8, truncation="error", bos_id=1, stop_ids=frozenset([2]), forms_differ=differ)
        return finish(encode(source, range(len(systems)), source, rules))

    (line,) = findings(read("Be brief.", "", None, "Be kind."), "training")
    assert line.startswith("training: 2 of 4 rows are written as plain text, and the others by the tokenizer's chat")
    assert "(r:1, r:2)" in line
    assert "--data.template own, plain" in line
    assert findings(read("Be brief.", "Be kind."), "training") == []
    assert findings(read("", None), "training") == []
    assert findings(read("Be brief.", "", differ=False), "training") == []
    assert findings(read("Be brief.") + read(""), "training"), "also where chunks are added up"


def test_every_threshold_is_broken_by_a_test_above() -> None:
    assert len(THRESHOLDS) == len(BROKEN) + 4


def test_strict_refuses_all_findings_at_once() -> None:
    refuse_findings([])
    with pytest.raises(DataError, match=r"data\.strict is on, and the data has 2 faults:\n  one\n  two"):
        refuse_findings(["one", "two"])


# ----------------------------------------------------------------------------------------------------------- bad rows


def test_a_bad_row_is_an_error_or_is_counted_and_listed() -> None:
    rows = [GOOD[0], "broken", GOOD[1]]
    with pytest.raises(DataError, match="r:1: broken"):
        encode_rows(rows)
    report = encode_rows(rows, on_bad_row="skip").report
    assert (report.rows_read, report.rows_kept, report.rows_dropped) == (3, 2, {BAD_ROW: 1})
    assert report.bad_rows == ["r:1: broken"]


def test_a_row_that_is_too_long_is_a_bad_row_under_truncation_error() -> None:
    report = encode_rows([GOOD[0], sample(*range(20))], on_bad_row="skip", truncation="error").report
    assert "r:1: 20 tokens exceed" in report.bad_rows[0]


def test_more_bad_rows_than_allowed_are_an_error_that_shows_the_first() -> None:
    rows = [GOOD[0], *["broken"] * 4]
    assert len(encode_rows(rows, on_bad_row="skip", max_bad_rows=4).report.bad_rows) == 4
    with pytest.raises(DataError, match=r"4 bad rows exceed data\.max_bad_rows=3.*--data\.max-bad-rows(.|\n)*r:1: bro"):
        encode_rows(rows, on_bad_row="skip", max_bad_rows=3)


def test_a_fault_of_an_objective_that_names_no_row_gets_its_name() -> None:
    class Vague(Source):
        def encode(self, row: Row) -> Sample | Rejected:
            raise DataError("character 3 is half of a character")

    class Clear(Source):
        def encode(self, row: Row) -> Sample | Rejected:
            raise DataError(f"{row['id']}: no field 'text'")

    rules = Rules(max_len=8, truncation="error")
    with pytest.raises(DataError, match=r"^r:0: character 3 is half of a character$"):
        encode(Vague(GOOD), range(1), Vague(GOOD), rules)
    with pytest.raises(DataError, match=r"^r:0: no field 'text'$"):
        encode(Clear(GOOD), range(1), Clear(GOOD), rules)
